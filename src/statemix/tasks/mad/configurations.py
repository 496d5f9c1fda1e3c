"""The four data sets that Dubinin et al. make of each task of MAD (Table 3 and Appendix D)."""


def four(**baseline: object) -> dict[str, dict[str, object]]:
    """Return a baseline and its three harder variants by name.

    Args:
        **baseline: options of the baseline besides ``vocab_size`` and ``train_size``; the first one
            is the length.

    Example:
        >>> four(length=64)["length-128"]
        {'vocab_size': 16, 'train_size': 20000, 'length': 128}
    """
    (name, size), *_ = baseline.items()
    assert isinstance(size, int)
    standard = {"vocab_size": 16, "train_size": 20_000, **baseline}
    return {
        "baseline": standard,
        "vocabulary-32": standard | {"vocab_size": 32},
        "length-128": standard | {name: 2 * size},
        "examples-10k": standard | {"train_size": 10_000},
    }
