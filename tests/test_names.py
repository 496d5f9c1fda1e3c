"""Public types and modules have names of their own."""

import re
from collections import Counter
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "statemix"
# These layers travel alone, under the names of those that they replace.
LEFT_OUT = ("__main__.py", "portable_layers.py")
FILES = [path for path in PACKAGE.rglob("*.py") if path.name not in LEFT_OUT]
# A command has the name of the room that it serves.
COMMANDS = {"bench", "demo", "lm", "tasks"}
# A class, or an alias of a type.
TYPE = re.compile(r"^class ([A-Z]\w*)|^([A-Z]\w*[a-z]\w*)(?:: TypeAlias)? = ", re.MULTILINE)


def repeated(names):
    return {name for name, count in Counter(names).items() if count > 1}


def test_module_names_are_unique():
    names = [path.parent.name if path.stem == "__init__" else path.stem for path in FILES]
    assert repeated(names) <= COMMANDS


def test_names_of_public_types_are_unique():
    names = [first or other for path in FILES for first, other in TYPE.findall(path.read_text())]
    assert not repeated(names)
