"""The errors of invalid requests."""

import difflib
import re
from collections.abc import Iterable
from functools import partial
from typing import Any


class _Absent:
    def __repr__(self) -> str:
        return "absent"

    def __reduce__(self) -> str:
        return "ABSENT"


ABSENT: Any = _Absent()
"""Stands for a value that does not exist, such as that of a setting that was not given."""


class RequestError(ValueError):
    """A request of the user that cannot be met; the message gives the reason in one line.

    The command line treats any other ValueError as a defect.
    """


class RunsFailedError(Exception):
    """The request was valid, but some runs have no result; the message says how many."""


class OptionError(ValueError):
    """A layer, task or mixer refuses the type or the value of an option of its constructor.

    Any other exception of a constructor is a defect of that class.
    """


class SettingError(RequestError, OptionError):
    """A setting is missing or has an invalid value.

    Args:
        path: dotted name of the setting; empty where there is none.
        condition: requirement on the setting, in words that begin with "must".
        value: value given; :data:`ABSENT` if there is none.
        subject: beginning of the message after ``path``; empty means that ``path`` is the subject.
        advice: end of the message, such as a :func:`suggestion`.
    """

    def __init__(
        self, path: str, condition: str, value: object, *, subject: str = "", advice: str = ""
    ) -> None:
        self.path, self.condition, self.value = path, condition, value
        self.subject, self.advice = subject, advice
        head = ": ".join(part for part in (path, subject) if part)
        text = repr(value)
        text = text if len(text) <= 200 else f"{text[:200]}… ({len(text)} characters)"
        got = "" if value is ABSENT else f", got {text}"
        super().__init__(f"{head} {condition}{got}{advice}")

    def below(self, path: str) -> "SettingError":
        """Return the same error with the name of the setting preceded by ``path``."""
        name = ".".join(part for part in (path, self.path) if part)
        words = {"subject": self.subject, "advice": self.advice}
        return SettingError(name, self.condition, self.value, **words)

    def __reduce__(self) -> Any:
        words = {"subject": self.subject, "advice": self.advice}
        return partial(SettingError, **words), (self.path, self.condition, self.value)


def suggestion(name: object, choices: Iterable[str]) -> str:
    """Return the end of a message that names the choice that a user probably meant, or ""."""
    if not isinstance(name, str):
        return ""
    initials = {"".join(re.findall("(?:^|[_-])(.)", choice)): choice for choice in choices}
    plain = {_letters(choice): choice for choice in choices}
    close = difflib.get_close_matches(_letters(name), plain, n=1)
    meant = plain[close[0]] if close else initials.get(name)
    return f"; did you mean {meant!r}?" if meant else ""


def _letters(name: str) -> str:
    return re.sub("[^a-z0-9]", "", name.lower())
