"""The demo's page and picture: one HTML file that needs nothing else, and a PNG."""

import base64
import json
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2

from statemix.experiments.summary import Network, Summary
from statemix.report import figures, tables, verdict
from statemix.training.checkpoint import write_file

# Dots per inch: of the stored picture, and of the copies inside the page.
_DPI, _PAGE_DPI = 150, 110


def write(summary: Summary, folder: Path, command: str) -> list[Path]:
    """Write index.html, learning.png and summary.json, each whole or not at all.

    Args:
        summary: the results of a suite.
        folder: an existing folder.
        command: what a reader types to make them again.

    Returns:
        The three files.
    """
    contents = {
        "index.html": render(summary, command).encode(),
        "learning.png": figures.png(figures.learning_figure(summary), _DPI),
        "summary.json": (json.dumps(summary, indent=1) + "\n").encode(),
    }
    paths = []
    for name, content in contents.items():
        path = folder / name
        write_file(path, content)
        paths.append(path)
    return paths


def render(summary: Summary, command: str) -> str:
    """Make the page from the results; every sentence about them is computed."""
    setting = summary["setting"]
    letter, _, degree = setting["group"].partition("_")
    rows = tables.by_model(summary)
    seed_counts = sorted({row.seeds for row in rows})
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    template = environment.from_string(
        resources.files("statemix.report").joinpath("page.html.j2").read_text(encoding="utf-8")
    )
    return template.render(
        group=setting["group"],
        letter=letter,
        degree=degree,
        setting=setting,
        lengths=tables.lengths(summary),
        images=_images(summary),
        rows=[
            {
                "label": row.label,
                "kind": _kind(network, summary["protocol"]["hidden_size"]),
                "accuracy": row.accuracy,
                "published": row.published,
            }
            for row, network in zip(rows, _networks(summary), strict=True)
        ],
        runs=summary["runs"],
        seeds=" or ".join(str(count) for count in seed_counts)
        + (" seed" if seed_counts == [1] else " seeds"),
        sharpen=setting["sharpen"][2] != 1.0,
        verdict=verdict.sentences(summary),
        words=lambda length: f"{setting['test_words'][str(length)]:,} words",
        published=summary["published"],
        protocol=_protocol(summary),
        differences=_differences(summary),
        command=command,
        time=_duration(summary["time_s"]),
        environment=_environment(summary["environment"]),
        label=tables.label,
        accuracy_text=tables.accuracy_text,
        range_text=tables.range_text,
        published_text=tables.published_text,
    )


def _images(summary: Summary) -> dict[str, str]:
    return {
        f"{'narrow' if stacked else 'wide'}_{'dark' if dark else 'light'}": "data:image/png;base64,"
        + base64.b64encode(
            figures.png(figures.learning_figure(summary, dark=dark, stacked=stacked), _PAGE_DPI)
        ).decode()
        for stacked in (False, True)
        for dark in (False, True)
    }


def _networks(summary: Summary) -> list[Network]:
    by_name = {(network["model"], network["m"]): network for network in summary["networks"]}
    return [by_name[key] for key in tables.models(summary)]


def _kind(network: Network, hidden_size: int) -> str:
    """Describe the state of a network."""
    options = network["options"]
    if "num_blocks" in options:
        diagonal = ", diagonal" if network["m"] == 1 else ""
        return f"{options['num_blocks']} blocks of {options['block_size']}{diagonal}"
    return f"{hidden_size} units"


def _duration(time_s: float) -> str:
    minutes, seconds = divmod(round(time_s), 60)
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"


def _environment(environment: dict[str, Any]) -> list[str]:
    packages = environment["packages"]
    return [
        f"Statemix {packages['statemix'] or '(not installed)'}",
        f"PyTorch {packages['torch']}",
        f"Python {environment['python']}",
        f"{environment['cpu']}, {environment['cpu_count']} cores",
    ]


def _protocol(summary: Summary) -> list[tuple[str, str]]:
    """Put the shared configuration into words; every number comes from it."""
    config: dict[str, Any] = summary["protocol"]
    setting = summary["setting"]
    unit, duration = setting["unit"], setting["duration"]
    examples = (
        f"{setting['train_size']:,} examples, others for each seed"
        if setting["train_size"]
        else "fresh words in every batch"
    )
    lines = [
        ("Training data", f"{examples}, of length {setting['train_length']}"),
        ("Start token", "a learned one before every word" if config["bos"] else "none"),
        (
            "Network",
            f"embedding, {config['num_layers']} layer ({config['norm']} norm before it, "
            f"{'with' if config['residual'] else 'without'} residual; channel mixer: "
            f"{config['channel_mixer']}), norm, linear readout; width {config['hidden_size']}",
        ),
        ("Initial values", "embedding N(0, 0.02²), biases 0"),
        (
            "Optimiser",
            f"AdamW, learning rate {config['learning_rate']:g}, weight decay "
            f"{config['weight_decay']:g}, batches of {config['batch_size']}",
        ),
        (
            "Schedule",
            f"cosine to {config['min_learning_rate']:g} over {duration:,} {unit}s"
            if config["schedule"] == "cosine"
            else f"constant over {duration:,} {unit}s",
        ),
    ]
    start, end, inverse = setting["sharpen"]
    if inverse != 1.0:
        lines.append(
            (
                "Gates",
                f"inverse temperature 1, rising linearly to {inverse:g} between {unit}s "
                f"{start:,.0f} and {end:,.0f}, and kept for the tests (an LSTM has none)",
            )
        )
    lines.append(("Tested", "the last weights, on words drawn apart from the training words"))
    return lines


def _differences(summary: Summary) -> list[str]:
    setting, published = summary["setting"], summary["published"]
    inverse = setting["sharpen"][2]
    differences = [
        f"The paper's column is for {published['setting']}: {published['metric'].split(';')[0]}. "
        "Ours is the mean over seeds at one learning rate, with the last weights: nothing is "
        "selected.",
    ]
    if inverse != 1.0:
        differences.append(
            "The gates are sharpened during training; the paper's are not. A softmax gate holds a "
            "permutation only in the limit, and leaks a little at every step until then, which "
            "long words would show. These runs do not test how far the networks get without it."
        )
    if summary["protocol"]["bos"]:
        differences.append(
            "Every word begins with a start token, which lets the state be written before the "
            "first element acts on it; the paper mentions none."
        )
    differences.append(
        f"The paper's table is for length {setting['train_length']}; our longer words have no "
        "published counterpart."
    )
    if setting["group"] == "S_3":
        differences.append(
            "The protocol was chosen for the BD-LRU, and the LSTM is not tuned. With weight decay "
            "1.0 and twice the epochs it does learn words of the training length from the same "
            "250 examples, though not the longest ones: its row says what happens here and not "
            "what an LSTM can do."
        )
    else:
        differences.append(
            "The protocol was chosen for the BD-LRU, and the other networks are not tuned: their "
            "rows say what happens here, not what they can do with other settings or more steps."
        )
    return differences
