"""The suites of Movahedi et al. in reports."""
