"""What the suites of exactness have found, as text and figures."""
