"""The demo's table, figure, sentences and page."""
