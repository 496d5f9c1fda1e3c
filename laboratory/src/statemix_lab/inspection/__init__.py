"""The layers of one trained model: pictures and a table."""
