"""Runs of a grid: every pair once, one folder each, chosen by validation."""

import pytest

from statemix.training import best_by_validation, grid, train


def test_every_pair_has_a_folder(tiny, tmp_path):
    config = tiny()
    runs = grid(config, tmp_path, learning_rates=(1e-3, 0.5), weight_decays=(0.0, 0.1))
    pairs = [(run.learning_rate, run.weight_decay) for run in runs.values()]
    assert pairs == [(1e-3, 0.0), (1e-3, 0.1), (0.5, 0.0), (0.5, 0.1)]
    assert [folder.name for folder in runs][:2] == ["lr0.001-wd0.0", "lr0.001-wd0.1"]
    assert {folder.parent for folder in runs} == {tmp_path}


def test_what_is_not_given_stays(tiny, tmp_path):
    (run,) = grid(tiny(weight_decay=0.3), tmp_path, learning_rates=(0.5,)).values()
    assert run == tiny(weight_decay=0.3, learning_rate=0.5)
    (run,) = grid(tiny(), tmp_path, weight_decays=(0.5,)).values()
    assert run == tiny(weight_decay=0.5)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"learning_rates": (1e-3, 1e-3)}, "learning_rates must differ from each other, got"),
        ({"weight_decays": (0.1, 0.1)}, "weight_decays must differ from each other, got"),
        ({"learning_rates": (1e-3, -1.0)}, "learning_rate must be finite and not negative, got -1"),
        ({"weight_decays": (float("nan"),)}, "weight_decay must be finite"),
        ({"learning_rates": (1e-9,)}, "min_learning_rate must be at most learning_rate=1e-09"),
    ],
)
def test_bad_values_are_refused_before_anything_runs(tiny, tmp_path, values, message):
    with pytest.raises(ValueError, match=message):
        grid(tiny(), tmp_path, **values)


def test_a_single_runs_folder_is_refused(tiny, tmp_path):
    train(tiny(epochs=1), tmp_path)
    with pytest.raises(ValueError, match="folder must not hold a run"):
        grid(tiny(), tmp_path, learning_rates=(0.5,))


def test_the_best_by_validation_is_chosen(tiny, tmp_path):
    runs = grid(tiny(epochs=30), tmp_path, learning_rates=(1e-5, 3e-2))
    slow, fast = (train(config, folder) for folder, config in runs.items())
    best = fast.test_at_best_validation.validation.token_accuracy
    assert best > slow.test_at_best_validation.validation.token_accuracy
    assert best_by_validation([slow, fast]) is fast
    assert best_by_validation([fast, slow]) is fast
    with pytest.raises(ValueError, match="empty"):
        best_by_validation([])
