"""Results as a suite leaves them, without any training."""

import pytest

from statemix.experiments import published

LENGTHS = (16, 64, 256, 1024, 4096, 16384)
NETWORKS = (("bd_lru", 3), ("bd_lru", 2), ("bd_lru", 1), ("lstm", None))
# Distinct numbers with known means over the two seeds, at the training length.
SCORES = {("bd_lru", 3): 1.0, ("bd_lru", 2): 0.5, ("bd_lru", 1): 0.25, ("lstm", None): 0.4}


@pytest.fixture
def summary():
    """Two seeds each; seed 1 is .05 better than seed 0 unless everything is right."""

    def score(network, seed, length):
        best = SCORES[network]
        if best == 1.0:
            return 1.0
        return best + 0.05 * seed if length == 16 else 1 / 6 + 1 / length + 0.01 * seed

    runs = [
        {
            "model": network[0],
            "m": network[1],
            "seed": seed,
            "accuracy": {str(length): score(network, seed, length) for length in LENGTHS},
        }
        for seed in (0, 1)
        for network in NETWORKS
    ]
    return {
        "runs": runs,
        "curves": [
            {
                "model": run["model"],
                "m": run["m"],
                "seed": run["seed"],
                "position": [0, 50, 100],
                "accuracy": [1 / 6, 0.2, run["accuracy"]["16"]],
            }
            for run in runs
        ],
        "setting": {
            "group": "S_3",
            "train_size": 250,
            "train_length": 16,
            "chance": 1 / 6,
            "unit": "epoch",
            "duration": 100,
            "sharpen": (50, 90, 8.0),
            "test_words": {str(length): 65536 // length for length in LENGTHS},
        },
        "networks": [
            {
                "model": model,
                "m": m,
                "options": {"num_blocks": 64, "block_size": m} if m else {},
            }
            for model, m in NETWORKS
        ],
        "protocol": {
            "bos": True,
            "num_layers": 1,
            "norm": "rms",
            "residual": True,
            "channel_mixer": "none",
            "hidden_size": 128,
            "learning_rate": 1e-3,
            "weight_decay": 0.01,
            "batch_size": 128,
            "schedule": "cosine",
            "min_learning_rate": 1e-5,
        },
        "published": published.permutation("s3_250", "S_3 from 250 examples"),
        "environment": {
            "python": "3.11.2",
            "packages": {"statemix": "0.1.0", "torch": "2.13.0"},
            "cpu": "Example CPU",
            "cpu_count": 2,
        },
        "time_s": 100.4,
    }
