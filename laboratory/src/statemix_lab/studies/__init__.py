"""Suites of runs that answer a question, and the published numbers beside them."""
