"""The demo's figure: how the networks learn, and how far they generalise."""

from functools import partial

from matplotlib.figure import Figure

from statemix.studies import figures
from statemix.studies.demo.demo_scores import accuracies, lengths, networks
from statemix.studies.demo.demo_suite import Summary
from statemix.studies.figures import Panel, Series
from statemix.studies.number_text import accuracy_text
from statemix.studies.results import Row
from statemix.studies.style import LIGHT, Theme


def learning_figure(summary: Summary, *, theme: Theme = LIGHT, stacked: bool = False) -> Figure:
    """Draw token accuracy against training time, and against word length.

    Args:
        summary: the results of a suite.
        theme: as in :func:`figures.draw`.
        stacked: as in :func:`figures.draw`.
    """
    return figures.draw(
        [_learning(summary), _generalisation(summary)], theme=theme, stacked=stacked
    )


def images(summary: Summary) -> dict[str, bytes]:
    """Render the figure for every kind of page."""
    return figures.variants(partial(learning_figure, summary))


def is_diagonal(run: Row) -> bool:
    """Whether the network's recurrence is diagonal."""
    return run["layers"][0].get("block_size") == 1


def _series(summary: Summary, lines: dict[str, list[dict[float, float]]]) -> list[Series]:
    found = []
    for label, runs in networks(summary).items():
        name = label + (", diagonal" if is_diagonal(runs[0]) else "")
        found.append(Series(name, runs[0]["layers"][0]["name"], lines[label]))
    return found


def _learning(summary: Summary) -> Panel:
    setting = summary["setting"]
    head, unit = setting["head"], setting["unit"]
    lines: dict[str, list[dict[float, float]]] = {}
    for label, runs in networks(summary).items():
        curves = [run["curve"] for run in runs if run["status"] == "done"]
        lines[label] = [
            dict(zip(curve[unit] or [], curve["accuracy"][head], strict=True)) for curve in curves
        ]
    size = setting["train_size"]
    examples = "fresh words" if size is None else f"{size:,} examples"
    sharpening = setting["sharpening"]
    return Panel(
        title=f"Learning {_math(setting['group'])} from {examples} of length "
        f"{setting['train_length']}",
        x_label=unit,
        y_label="token accuracy on test words",
        series=_series(summary, lines),
        x_limits=(0, setting["duration"]),
        level=_guessing(summary),
        span=sharpening and (sharpening["begin"], sharpening["finish"], "gates sharpen"),
    )


def _generalisation(summary: Summary) -> Panel:
    lines: dict[str, list[dict[float, float]]] = {}
    for label, runs in networks(summary).items():
        found = (accuracies(summary, run) for run in runs)
        lines[label] = [dict(scores.items()) for scores in found if scores]
    ticks = lengths(summary)
    return Panel(
        title="Accuracy on words longer than the training words",
        x_label="word length",
        y_label="",
        series=_series(summary, lines),
        x_limits=(ticks[0] / 1.25, ticks[-1] * 1.25),
        x_ticks=ticks,
        markers=True,
        level=_guessing(summary),
    )


def _guessing(summary: Summary) -> tuple[float, str]:
    chance = summary["setting"]["chance"]
    return chance, f"guessing {accuracy_text(chance)}"


def _math(group: str) -> str:
    name, _, index = group.partition("_")
    return f"${name}_{{{index}}}$"
