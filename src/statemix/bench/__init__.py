"""Timing: a fair harness and the cases measured with it."""
