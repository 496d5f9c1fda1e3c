"""Language models: Figure 4 of Dubinin et al., and a duel of layers."""
