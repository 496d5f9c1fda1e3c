"""Benchmarks: a harness for fair timing, and the cases measured with it."""
