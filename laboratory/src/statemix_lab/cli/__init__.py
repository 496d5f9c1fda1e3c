"""Commands of the laboratory, which ``statemix`` finds by entry points."""
