"""The toys register themselves when they are imported, which collecting them would do."""

collect_ignore_glob = ["statemix_toys.py"]
