"""The page of results: one self-contained HTML file with a section for each study."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path

import jinja2

from statemix_lab.studies.figure import DARK, LIGHT
from statemix_lab.studies.result_text import environment_text
from statemix_lab.studies.store import StoredRow
from statemix_lab.studies.study import Study


def render_page(shown: Iterable[Study], rows: Mapping[str, StoredRow], folder: Path) -> str:
    """Render the page of some studies; every number in it is computed from the rows."""
    listed = list(shown)
    sections = [section for study in listed for section in study.sections(rows, folder)]
    return (
        jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
        .from_string(
            resources.files("statemix_lab.studies")
            .joinpath("results_page.html.j2")
            .read_text(encoding="utf-8")
        )
        .render(
            light=LIGHT,
            dark=DARK,
            lead=_lead(listed, rows),
            sections=sections,
            machines=_machines(rows.values()),
        )
    )


def _lead(listed: Iterable[Study], rows: Mapping[str, StoredRow]) -> Sequence[str]:
    """Say for each paper how many of its numbers are measured, and how many agree."""
    found: dict[str, list[tuple[int, int, int]]] = {}
    for study in listed:
        if study.paper:
            found.setdefault(study.paper, []).append(study.counts(rows))
    sentences = []
    for paper, counts in found.items():
        measured, agree, of = (sum(one) for one in zip(*counts, strict=True))
        text = "none in the setting of the paper; the sections below show other settings"
        if measured:
            text = f"{measured} with at least three seeds, of which {agree} agree within .05"
        sentences.append(f"Of {of} numbers of {paper} we have measured {text}.")
    return sentences


def _machines(rows: Iterable[StoredRow]) -> Sequence[str]:
    """Describe every combination of versions and machine once, and how many runs it made."""
    counts = Counter(environment_text(row["environment"]) for row in rows)
    return [f"{words}: {count} runs" for words, count in counts.items()]
