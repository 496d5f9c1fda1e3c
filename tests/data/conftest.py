"""What lies here is read by tests, not collected."""

collect_ignore_glob = ["*"]
