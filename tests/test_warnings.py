"""Warnings fail a test, except that torch may deprecate what torch itself uses."""

import warnings

import pytest

DEPRECATIONS = [DeprecationWarning, FutureWarning]


def warn(category, module):
    """Warn as if a line of ``module`` were the cause."""
    warnings.warn_explicit("soon", category, filename=f"{module}.py", lineno=1, module=module)


@pytest.mark.parametrize("category", DEPRECATIONS)
def test_only_a_deprecation_within_torch_is_no_error(category):
    with warnings.catch_warnings(record=True) as caught:
        warn(category, "torch")
        warn(category, "torch.jit._script")
    assert [warning.category for warning in caught] == [category] * 2
    for module in ("statemix.ops.loop", "tests.test_warnings", "torchvision"):
        with pytest.raises(category, match="soon"):
            warn(category, module)


@pytest.mark.parametrize("category", [UserWarning, RuntimeWarning])
def test_another_warning_within_torch_is_an_error(category):
    """Such warnings concern our use of torch."""
    with pytest.raises(category, match="soon"):
        warn(category, "torch.nn.functional")
