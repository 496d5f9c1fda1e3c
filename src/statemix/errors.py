"""The errors of invalid requests."""

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

    Only invalid requests raise this class. Any other ValueError is a defect of the library.
    """


class RunsFailedError(Exception):
    """The request was valid, but some runs have no result; the message says how many."""


class OptionError(ValueError):
    """A layer, task or mixer refuses an option of its constructor.

    This is the only exception by which they refuse an option, whether its type or its value is
    wrong. Any other exception of a constructor is a defect of that class.
    """


class SettingError(RequestError):
    """A setting is missing or has an invalid value.

    Args:
        path: dotted name of the setting; empty where there is none.
        condition: requirement on the setting, in words that begin with "must".
        value: value given; :data:`ABSENT` if there is none.
        subject: beginning of the message after ``path``; empty means that ``path`` is the subject.
    """

    def __init__(self, path: str, condition: str, value: object, *, subject: str = "") -> None:
        self.path, self.condition, self.value, self.subject = path, condition, value, subject
        got = "" if value is ABSENT else f", got {_shown(value)}"
        super().__init__(f"{self._head()} {condition}{got}")

    def below(self, path: str) -> "SettingError":
        """Return the same error with ``path`` as the name of the setting."""
        return SettingError(path, self.condition, self.value, subject=self.subject)

    def _head(self) -> str:
        if self.subject and self.path:
            return f"{self.path}: {self.subject}"
        return self.subject or self.path

    def __reduce__(self) -> Any:
        return _setting_error, (self.path, self.condition, self.value, self.subject)


def _setting_error(path: str, condition: str, value: object, subject: str) -> SettingError:
    return SettingError(path, condition, value, subject=subject)


def _shown(value: object, limit: int = 200) -> str:
    text = repr(value)
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text)} characters)"
