"""Show docstrings with reST roles and equations as Markdown: an extension for mkdocstrings."""

import re
import textwrap
from typing import Any

from griffe import Extension, Object

_ROLE = re.compile(r":(?:class|func|meth|mod|attr|data|obj|exc):`~?([^`]+)`")
_MATH = re.compile(r":math:`([^`]+)`")
_EQUATION = re.compile(
    r"^(?P<indent>[ ]*)\.\. math::[ ]*(?P<first>.*)\n"
    r"(?P<more>(?:[ ]*\n|(?P=indent)[ ]+.*(?:\n|$))*)",
    re.MULTILINE,
)


def to_markdown(docstring: str) -> str:
    """Return a docstring with Markdown in place of reST.

    Example:
        >>> to_markdown("The limit of :func:`statemix.sharpen`, for :math:`m > 1`.")
        'The limit of `statemix.sharpen`, for $m > 1$.'
    """
    text = _EQUATION.sub(_block, docstring.rstrip() + "\n")
    text = _MATH.sub(r"$\1$", _ROLE.sub(r"`\1`", text))
    return re.sub(r"^(\s*)Example:$", r"\1Examples:", text, flags=re.MULTILINE).rstrip()


def _block(found: re.Match[str]) -> str:
    indent = found["indent"]
    lines = [found["first"], *textwrap.dedent(found["more"]).splitlines()]
    equation = "\n".join(line for line in lines if line.strip())
    if "&" in equation:
        equation = f"\\begin{{aligned}}\n{equation}\n\\end{{aligned}}"
    return textwrap.indent(f"\n$$\n{equation}\n$$\n\n", indent)


class MarkdownDocstrings(Extension):
    """Converts the docstring of every object before it is parsed."""

    def on_object(self, *, obj: Object, **kwargs: Any) -> None:
        del kwargs
        if obj.docstring is not None:
            obj.docstring.value = to_markdown(obj.docstring.value)
