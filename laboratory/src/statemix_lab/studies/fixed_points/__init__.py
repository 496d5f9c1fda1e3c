"""The suites of Movahedi et al., "Fixed-Point RNNs"."""
