"""The user's own modules, imported before the options that use their names."""

import os
import sys
from collections.abc import Sequence

from statemix.training.reading import import_modules


def import_named(arguments: Sequence[str]) -> None:
    """Import the modules named by --imports: they may register names that other options use.

    Raises:
        SettingError: if a module cannot be found.
    """
    # As with `python -m`, the working directory may hold the user's own modules.
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    names: list[str] = []
    reading = False
    for argument in arguments:
        if argument.startswith("--"):
            flag, _, value = argument.partition("=")
            reading = flag == "--imports"
            argument = value
        if reading and argument:
            names.append(argument)
    import_modules(names)
