"""What tests of all tasks share."""

import pytest

from statemix import tasks


@pytest.fixture(scope="session")
def build(required_options):
    """Build a task by name, with the options that it needs."""

    def built(name, **options):
        if name == "chess":
            pytest.importorskip("chess", reason="games need python-chess")
        return tasks.build(name, **{**required_options.get(name, {}), **options})

    return built
