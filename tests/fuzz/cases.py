"""What a case is: numbers that address it, one source of randomness, and how it may end."""

import hashlib
import random
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

COMPUTED, REFUSED, FINDING = "computed", "refused", "finding"


class FindingError(Exception):
    """A promise of the library that does not hold; the message says which one and where."""


@dataclass(frozen=True)
class Row:
    """How one case ended: its index, one of three verdicts, and the finding in words."""

    index: int
    verdict: str
    text: str = ""


def judged(kind: ModuleType, seed: int, index: int, folder: Path, prepared: Path) -> Row:
    """Run one case in an empty folder of its own."""
    folder.mkdir()
    # The randomness of a case depends on its address alone.
    r = random.Random(hashlib.sha256(f"{seed}/{kind.NAME}/{index}".encode()).digest())
    try:
        return Row(index, kind.run(r, folder, prepared))
    except FindingError as finding:
        return Row(index, FINDING, line(finding, 600))
    except Exception as error:  # noqa: BLE001  an error of the fuzzer itself is a finding, too
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(last.filename).name}:{last.lineno}"
        return Row(index, FINDING, f"{type(error).__name__} at {where}: {line(error)}")


def require(condition: Any, text: str) -> None:
    """Report a finding unless the condition holds."""
    if not condition:
        raise FindingError(text)


def line(error: object, limit: int = 300) -> str:
    """A message as one line of bounded length."""
    text = " ".join(str(error).split())
    return text if len(text) <= limit else f"{text[:limit]}…"
