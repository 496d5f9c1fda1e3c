"""The demo's page, its figure as a PNG, and the summary from which both are made."""

import json
from pathlib import Path

from statemix.studies import figures
from statemix.studies import html as page
from statemix.studies.demo import demo_figure as figure
from statemix.studies.demo import demo_prose as prose
from statemix.studies.demo import demo_scores as scores
from statemix.studies.demo import demo_verdict as verdict
from statemix.studies.demo.demo_suite import Summary
from statemix.studies.number_text import counted, duration_text


def write(summary: Summary, folder: Path, command: str) -> list[Path]:
    """Write index.html, learning.png and summary.json, each atomically.

    Args:
        summary: the results of a suite.
        folder: an existing folder.
        command: command that reproduces the files.

    Returns:
        The paths of the three files.
    """
    return page.write(
        folder,
        {
            "index.html": render(summary, command).encode(),
            "learning.png": figures.png(figure.learning_figure(summary), figures.DPI),
            "summary.json": (json.dumps(summary, indent=1) + "\n").encode(),
        },
    )


def render(summary: Summary, command: str) -> str:
    """Render the page; every sentence about the results is computed from them."""
    setting = summary["setting"]
    letter, _, degree = setting["group"].partition("_")
    networks, cells = scores.networks(summary), scores.pivot(summary)
    return (
        page.templates()
        .get_template("demo/demo_page.html.j2")
        .render(
            group=setting["group"],
            letter=letter,
            degree=degree,
            setting=setting,
            lengths=scores.lengths(summary),
            images=page.data_uris(figure.images(summary)),
            rows=[
                {
                    "label": label,
                    "kind": prose.kind(summary, runs[0]),
                    "cells": {n: cells[label, str(n)] for n in scores.lengths(summary)},
                    "missing": cells[label, str(setting["train_length"])].missing_text,
                    "published": scores.published(summary).get(label),
                }
                for label, runs in networks.items()
            ],
            runs=[
                {
                    "name": f"{run['network']}, seed {run['seed']}",
                    "status": run["status"],
                    "accuracy": scores.accuracies(summary, run),
                    "proof": (run["certificate"] or {"verdict": ""})["verdict"],
                }
                for run in summary["runs"]
            ],
            missing=scores.missing(summary),
            seeds=_seeds({len(runs) for runs in networks.values()}),
            verdict=verdict.sentences(summary),
            words=lambda length: counted(setting["test_words"][str(length)], "word"),
            published=summary["published"],
            protocol=prose.protocol(summary),
            differences=prose.differences(summary),
            command=command,
            time=duration_text(summary["time_s"]),
            environment=page.environment_parts(summary["environment"]),
        )
    )


def _seeds(counts: set[int]) -> str:
    *first, last = sorted(counts)
    return " or ".join([*map(str, first), counted(last, "seed")])
