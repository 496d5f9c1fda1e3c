"""The tests of this folder need packages that statemix does not: run `make test-ecosystem`."""

import importlib.util

NEEDED = ("accelerate", "datasets", "lm_eval", "parameterized", "peft", "torchao", "trl")
if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
    collect_ignore_glob = ["*.py"]
