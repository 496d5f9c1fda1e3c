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
