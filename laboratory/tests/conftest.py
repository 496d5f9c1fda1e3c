"""Small runs of the studies."""

import pytest


@pytest.fixture
def tiny_models(monkeypatch):
    """Runs of the paper's tables with small networks and evaluations."""
    from statemix_lab.studies.higher_order import protocols

    whole = protocols._config

    def small(layer, data, size):
        config = whole(layer, data, size)
        return config.replace(
            model=config.model.replace(hidden_size=8),
            evaluation=config.evaluation.replace(test_size=8, validation_size=8),
        )

    monkeypatch.setattr(protocols, "_config", small)
    # The keys of small runs must not be remembered, nor those of whole runs be used.
    monkeypatch.setattr(protocols, "_trials", protocols._trials.__wrapped__)


@pytest.fixture
def process_kept(monkeypatch):
    """Benchmarks leave the allocator and the number of threads of the test process as they are."""
    import torch

    from statemix_lab.bench.timed_devices import Cpu

    threads = torch.get_num_threads()
    monkeypatch.setattr(Cpu, "reuse_freed_memory", lambda self: True)
    yield
    torch.set_num_threads(threads)
