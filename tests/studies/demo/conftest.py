"""Invented results in the form of a suite's, without any training."""

import pytest

from statemix.studies.demo import demo_suite as demo
from statemix.training.plain import to_plain

LENGTHS = (16, 64, 256, 1024, 4096, 16384)
# Distinct numbers with known means over the two seeds, at the training length.
SCORES = {"BD-LRU m=3": 1.0, "BD-LRU m=2": 0.5, "BD-LRU m=1": 0.25, "LSTM": 0.4}
ENVIRONMENT = {
    "python": "3.11.2",
    "packages": {"statemix": "0.1.0", "torch": "2.13.0"},
    "cpu": "Example CPU",
    "cpu_count": 2,
}


def score(network, seed, length):
    """At the training length seed 1 is .05 better than seed 0, unless both are perfect."""
    best = SCORES[network]
    if best == 1.0:
        return 1.0
    return best + 0.05 * seed if length == 16 else 1 / 6 + 1 / length + 0.01 * seed


def row(network, seed):
    accuracy = {length: score(network.label, seed, length) for length in LENGTHS}
    return {
        "network": network.label,
        "layers": [to_plain(layer) for layer in network.layers],
        "task": {"name": "permutation", "group": "S_3", "train_size": 250},
        "seed": seed,
        "status": "done",
        "message": "",
        "test": {
            str(length): {"product": {"token_accuracy": value}}
            for length, value in accuracy.items()
        },
        "best_test": {},
        "test_at_best_validation": {},
        "curve": {
            "step": [2, 100, 200],
            "epoch": [1, 50, 100],
            "accuracy": {"product": [1 / 6, 0.2, accuracy[16]]},
        },
        "num_parameters": 1000,
        "time_s": 12.55,
        "certificate": {"verdict": "open"},
        "attempts": None,
    }


@pytest.fixture
def summary():
    """Two seeds of each network of the demo on S_3."""
    suite = demo.SUITES["S_3"]
    rows = [row(network, seed) for seed in (0, 1) for network in suite.networks]
    return demo.summarize(suite, rows, ENVIRONMENT)


@pytest.fixture
def set_accuracy():
    """Change scores of a run: set_accuracy(run, {16: 0.5})."""

    def change(run, accuracy):
        for length, value in accuracy.items():
            run["test"][str(length)]["product"]["token_accuracy"] = value

    return change


@pytest.fixture
def lose():
    """Remove the result of a run: lose(run, "diverged", "loss is nan")."""

    def change(run, status, message):
        run |= {"status": status, "message": message, "test": {}, "time_s": None}
        run["certificate"] = None
        run["curve"] = {"step": [], "epoch": None, "accuracy": {}}

    return change
