"""The page of results: one self-contained HTML file with a section for each study."""

from collections import Counter
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path

import jinja2

from statemix_lab.studies.figure import DARK, LIGHT
from statemix_lab.studies.result_text import environment_text
from statemix_lab.studies.store import StoredRow
from statemix_lab.studies.study import Study


def render_page(shown: Iterable[Study], rows: Mapping[str, StoredRow], folder: Path) -> str:
    """Render the page of some studies; every number in it is computed from the rows."""
    studies, lead = list(shown), []
    # How many numbers of each paper are measured, and how many agree.
    for paper in dict.fromkeys(study.paper for study in studies if study.paper):
        counts = [study.counts(rows) for study in studies if study.paper == paper]
        measured, agree, of = map(sum, zip(*counts, strict=True))
        text = "none in the setting of the paper; the sections below show other settings"
        if measured:
            text = f"{measured} with at least three seeds, of which {agree} agree within .05"
        lead.append(f"Of {of} numbers of {paper} we have measured {text}.")
    # Every combination of versions and machine, and how many runs it made.
    machines = Counter(environment_text(row["environment"]) for row in rows.values())
    page = resources.files("statemix_lab.studies").joinpath("results_page.html.j2")
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    return environment.from_string(page.read_text(encoding="utf-8")).render(
        light=LIGHT,
        dark=DARK,
        lead=lead,
        sections=[section for study in studies for section in study.sections(rows, folder)],
        machines=[f"{words}: {count} runs" for words, count in machines.items()],
    )
