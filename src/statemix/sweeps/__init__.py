"""Many runs: grids, recipes, and the processes that train them."""
