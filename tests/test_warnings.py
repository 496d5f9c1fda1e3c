"""Warnings fail a test, except that torch may deprecate what torch itself uses."""

import warnings

import pytest

DEPRECATIONS = [DeprecationWarning, FutureWarning]


def warn(category, module):
    """Warn as if a line of ``module`` were the cause."""
    warnings.warn_explicit("soon", category, filename=f"{module}.py", lineno=1, module=module)


@pytest.mark.parametrize("category", DEPRECATIONS)
@pytest.mark.parametrize("module", ["torch", "torch.jit._script"])
def test_a_deprecation_within_torch_is_no_error(category, module):
    with warnings.catch_warnings(record=True) as caught:
        warn(category, module)
    assert [one.category for one in caught] == [category]


@pytest.mark.parametrize("category", DEPRECATIONS)
@pytest.mark.parametrize("module", ["statemix.ops.loop", "tests.test_warnings", "torchvision"])
def test_a_deprecation_elsewhere_is_an_error(category, module):
    with pytest.raises(category, match="soon"):
        warn(category, module)


@pytest.mark.parametrize("category", [UserWarning, RuntimeWarning])
def test_another_warning_within_torch_is_an_error(category):
    """Such warnings concern our use of torch."""
    with pytest.raises(category, match="soon"):
        warn(category, "torch.nn.functional")
