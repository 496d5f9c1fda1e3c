"""Public types and modules have names of their own."""

import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = (ROOT / "src" / "statemix", ROOT / "laboratory" / "src" / "statemix_lab")
FILES = [one for package in PACKAGES for one in package.rglob("*.py") if one.name != "__main__.py"]
# A command has the name of the room that it serves; both packages have commands and tasks.
COMMANDS = {"bench", "cli", "demo", "lm", "tasks"}
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
