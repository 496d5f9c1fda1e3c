"""All studies by name. A new one is a line here, or is registered by a module of the user."""

from functools import cache
from importlib import import_module

from statemix.errors import RequestError
from statemix.studies.study import Study

# Each has a tuple STUDIES, in the order of the page.
_MODULES = (
    "statemix.studies.higher_order.higher_order_studies",
    "statemix.studies.exactness.exact_studies",
    "statemix.studies.fixed_points.fixed_point_studies",
    "statemix.studies.group_demo",
)
_REGISTERED: dict[str, Study] = {}


@cache
def _own() -> dict[str, Study]:
    every = [study for name in _MODULES for study in import_module(name).STUDIES]
    return {study.name: study for study in every}


def studies() -> dict[str, Study]:
    """Return all studies by name, in the order of the page."""
    return {**_own(), **_REGISTERED}


def find_study(name: str) -> Study:
    """Return a study by name.

    Raises:
        RequestError: if there is none.
    """
    known = studies()
    if name not in known:
        raise RequestError(f"study must be one of {', '.join(known)}, got {name!r}")
    return known[name]


def register_study(study: Study) -> Study:
    """Add a study of one's own, for ``statemix reproduce NAME --imports MODULE`` and the page.

    Raises:
        ValueError: if another study has its name.
    """
    if study.name in _own():
        raise ValueError(f"study must have a new name, got {study.name!r}")
    _REGISTERED[study.name] = study
    return study
