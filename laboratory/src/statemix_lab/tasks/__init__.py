"""Tasks of single studies and demos."""
