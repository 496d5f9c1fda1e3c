"""Throughput of single layers, arranged like Figure 3 of Dubinin et al."""
