"""``make mutants`` runs these scripts; pytest does not collect them."""

collect_ignore_glob = ["*.py"]
