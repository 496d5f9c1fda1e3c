"""The demo's protocol in words, and its differences from the paper; all numbers are computed."""

from fractions import Fraction
from typing import Any

from statemix.studies.demo.demo_figure import is_diagonal
from statemix.studies.demo.demo_suite import Setting, Summary
from statemix.studies.recipes import DESCRIPTIONS
from statemix.studies.results import Row


def kind(summary: Summary, run: Row) -> str:
    """Describe the size of a network's state."""
    layer = run["layers"][0]
    if "num_blocks" in layer:
        diagonal = ", diagonal" if is_diagonal(run) else ""
        return f"{layer['num_blocks']} blocks of {layer['block_size']}{diagonal}"
    return f"{summary['protocol']['model']['hidden_size']} units"


def protocol(summary: Summary) -> list[tuple[str, str]]:
    """Describe the configuration shared by all runs, as (term, description) pairs."""
    config, setting = summary["protocol"], summary["setting"]
    model, optimizer = config["model"], config["optimizer"]
    examples = (
        f"{setting['train_size']:,} examples, different for each seed"
        if setting["train_size"]
        else "fresh words in every batch"
    )
    lines = [
        ("Training data", f"{examples}, of length {setting['train_length']}"),
        ("Start token", "a learned one before every word" if model["bos"] else "none"),
        ("Network", _network(model)),
        ("Initial values", "embedding N(0, 0.02²), biases 0"),
        (
            "Optimiser",
            f"AdamW, learning rate {optimizer['learning_rate']:g}, weight decay "
            f"{optimizer['weight_decay']:g}, batches of {config['batches']['size']}",
        ),
        ("Schedule", _schedule(config["schedules"], setting)),
    ]
    if setting["sharpening"] is not None:
        lines.append(("Gates", _sharpening(setting)))
    if setting["recipes"]:
        lines.append(("By a recipe instead", _recipes(summary)))
    lines.append(("Tests", "the last weights, on words from a separate split"))
    return lines


def _network(model: dict[str, Any]) -> str:
    depth, mixer = model["num_layers"], model["channel_mixer"]
    return (
        f"embedding, {depth} {'layer' if depth == 1 else 'layers'} ({model['norm']} norm before "
        f"each, {'with' if model['residual'] else 'without'} residual; channel mixer: "
        f"{'none' if mixer is None else mixer['name']}), norm, linear readout; "
        f"width {model['hidden_size']}"
    )


def _schedule(schedules: dict[str, Any], setting: Setting) -> str:
    duration = f"{setting['duration']:,} {setting['unit']}s"
    if schedules["learning_rate"] == "cosine":
        return f"cosine to {schedules['min_learning_rate']:g} over {duration}"
    return f"constant over {duration}"


def _sharpening(setting: Setting) -> str:
    found = setting["sharpening"]
    assert found is not None
    text = (
        f"raw gates are divided by a temperature that falls to {_fraction(found['end'])} "
        f"between {setting['unit']}s {found['begin']:,.0f} and {found['finish']:,.0f} (its "
        "reciprocal rises linearly); the tests use its last value"
    )
    if found["without"]:
        text += f"; no gate temperature: {', '.join(found['without'])}"
    return text


def _recipes(summary: Summary) -> str:
    """Describe what recipes change, and how many attempts their runs have needed."""
    found = []
    for label, name in summary["setting"]["recipes"].items():
        runs = [run for run in summary["runs"] if run["network"] == label]
        attempts = [_attempts(run["attempts"]) for run in runs if run["attempts"]]
        needed = f" (attempts of the seeds: {', '.join(attempts)})" if attempts else ""
        found.append(f"{label} by the recipe {name}: {DESCRIPTIONS[name]}{needed}")
    return "; ".join(found)


def _attempts(passed: list[bool]) -> str:
    return str(len(passed)) + ("" if passed[-1] else ", none of which passed")


def _fraction(value: float) -> str:
    fraction = Fraction(value).limit_denominator(1000)
    return str(fraction) if fraction.numerator == 1 else f"{value:g}"


def differences(summary: Summary) -> list[str]:
    """List how the runs differ from the paper's."""
    setting, published = summary["setting"], summary["published"]
    if published is None:
        return ["The paper has no results on this group."]
    found = [
        f"The paper's column is for {published['setting']}: {published['metric'].split(';')[0]}. "
        "Ours is the mean over seeds at one learning rate, with the last weights: nothing is "
        "selected.",
    ]
    if setting["sharpening"] is not None:
        found.append(
            "The gates are sharpened during training: their temperature falls to "
            f"{_fraction(setting['sharpening']['end'])}. The paper does not sharpen gates. A "
            "softmax gate represents a permutation exactly only in the limit; before it, the state "
            "leaks a little at every step, which would show on long words. These runs do not show "
            "how far the networks get without sharpening."
        )
    if summary["protocol"]["model"]["bos"]:
        found.append(
            "Every word begins with a start token, so that the network can initialise its state "
            "before the first element acts on it. The paper mentions no such token."
        )
    found.append(
        f"The paper's table is for length {setting['train_length']}; our longer words have no "
        "published counterpart."
    )
    if setting["group"] == "S_3":
        found.append(
            "The protocol was chosen for the BD-LRU; the LSTM is not tuned. With weight decay 1.0 "
            "and twice the epochs it does learn words of the training length from the same 250 "
            "examples, though not the longest words. Its row shows this protocol, not the limit of "
            "an LSTM."
        )
    else:
        found.append(
            "Recipe and protocol were chosen for BD-LRUs; the other networks are not tuned. Their "
            "rows show this protocol, not what other settings or more steps would achieve."
        )
    return found
