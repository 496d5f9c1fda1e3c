"""Triton's interpreter, without most of its overhead."""

import os

import pytest


@pytest.fixture(scope="session", autouse=os.environ.get("TRITON_INTERPRET") == "1")
def language_replaced_once():
    """Replace Triton's language once for each launch and module of kernels.

    The interpreter does so for every call of a function within a kernel, which takes a third of the
    time of these tests.
    """
    from triton.runtime import interpreter

    replace, modules = interpreter._patch_lang, set()

    class Scope:
        """Of a launch, which restores what it replaced; calls within it restore nothing."""

        def __init__(self, fn):
            self.scope = replace(fn)

        def restore(self):
            self.scope.restore()
            modules.clear()

    def replaced(fn):
        if fn.__module__ in modules:
            return None
        modules.add(fn.__module__)
        return Scope(fn)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter, "_patch_lang", replaced)
        yield
