"""The synthetic tasks of MAD.

Source: Poli et al., "Mechanistic Design and Scaling of Hybrid Architectures". Laws and worked
examples follow the generators of mad-lab, whose random streams are not reproduced.
"""

from collections.abc import Sequence

_TRAIN_SIZES = (12_800, 6400, 3200, 1600, 800)


def dubinin_presets(**baseline: object) -> dict[str, dict[str, object]]:
    """Return the four data sets that Dubinin et al. make of a task (Table 3 and Appendix D)."""
    (name, size), *_ = baseline.items()
    assert isinstance(size, int)
    standard = {"vocab_size": 16, "train_size": 20_000, **baseline}
    return {
        "baseline": standard,
        "vocabulary-32": standard | {"vocab_size": 32},
        "length-128": standard | {name: 2 * size},
        "examples-10k": standard | {"train_size": 10_000},
    }


def of_mad(*, vocabularies: Sequence[int], lengths: Sequence[int]) -> dict[str, dict[str, object]]:
    """Return the data sets of MAD's benchmark: a baseline, and its variants with one change."""
    baseline: dict[str, object] = {
        "vocab_size": vocabularies[0],
        "train_size": _TRAIN_SIZES[0],
        "length": lengths[0],
    }
    changes = [("vocabulary", "vocab_size", size) for size in vocabularies[1:]]
    changes += [("length", "length", size) for size in lengths[1:]]
    changes += [("examples", "train_size", size) for size in _TRAIN_SIZES[1:]]
    variants = {f"{word}-{size}": baseline | {option: size} for word, option, size in changes}
    return {"baseline": baseline, **variants}
