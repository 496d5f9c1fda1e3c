"""The laboratory of Statemix: studies of papers, benchmarks, inspection and demos."""
