"""Check that no room has more Python than ``budget.toml`` allows; ``--lower`` lowers the limits."""

import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
BUDGET = ROOT / "budget.toml"
HEADER = """\
# Most files and lines of Python in each room, which `make lint` checks. Lower the numbers with
# `python tests/budget.py --lower`. Only a commit that adds a feature raises a number. A name that
# ends with "/" means the folder without its folders.

[rooms]
"""


def size_of(room: str) -> list[int]:
    """Return the number of files and of lines of Python in a room."""
    files = sorted((ROOT / room).glob("*.py" if room.endswith("/") else "**/*.py"))
    return [len(files), sum(file.read_bytes().count(b"\n") for file in files)]


def main() -> int:
    allowed = tomllib.loads(BUDGET.read_text())["rooms"]
    sizes = {room: size_of(room) for room in allowed}
    if sys.argv[1:] == ["--lower"]:
        least = {room: list(map(min, sizes[room], most)) for room, most in allowed.items()}
        lines = [f'"{room}" = {numbers}\n' for room, numbers in least.items()]
        BUDGET.write_text(HEADER + "".join(lines))
    over = [room for room, most in allowed.items() if any(map(int.__gt__, sizes[room], most))]
    for room in over:
        files, lines = sizes[room]
        sys.stderr.write(f"{room}: {files} files with {lines} lines, allowed are {allowed[room]}\n")
    return len(over)


if __name__ == "__main__":
    sys.exit(min(main(), 1))
