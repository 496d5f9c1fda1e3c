"""The scripts here are run by hand (``make faults``), not collected."""

collect_ignore_glob = ["*.py"]
