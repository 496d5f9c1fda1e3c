"""The scripts here are run by hand (``make fuzz``), not collected."""

collect_ignore_glob = ["*.py"]
