"""Certificates of finished runs: prove a run's network, store the proof, and load it again."""

import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from statemix import files, proofs
from statemix.automaton import IGNORED, HasAutomaton
from statemix.errors import OptionError, RequestError
from statemix.files import read_text
from statemix.models import ReadoutModel, TokenClassifier
from statemix.place_rules import HasPlaces
from statemix.proofs.safety import explore
from statemix.proofs.stepping import Stepper
from statemix.proofs.structure import structure_tables
from statemix.tasks import Task, names_of
from statemix.tasks.automata.language_tasks import Regex
from statemix.training import folder as runs
from statemix.training.outcome import WEIGHT_FILES, Weights, load_model, load_outcome, model_with
from statemix.training.schedules import attributes_set


def certify_run(
    folder: Path,
    weights: Weights = "last",
    *,
    soft: bool = False,
    max_pairs: int = 100_000,
    output: Path | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> tuple[proofs.Certificate, list[Path]]:
    """Prove or refute the network of a finished run, and write its certificate.

    If the task has an automaton, all pairs of states are searched (:func:`statemix.proofs.prove`),
    and after ``max_pairs`` the verdict is open. If it has places, the proof is one by structure, or
    by search if few arrangements are possible (:func:`statemix.proofs.prove_places`). ``soft``
    searches the network as it was trained. The certificate is written to ``output``, or else into
    the run's folder. ``on_progress`` is called with the number of pairs so far.

    Returns the certificate and the files that were written; no files if a stored proof stays.
    """
    outcome = load_outcome(folder)
    config, sha256 = outcome.config, outcome.weights[WEIGHT_FILES[weights]]
    task = config.build_task()
    if not isinstance(task, HasAutomaton | HasPlaces):
        raise RequestError(
            f"task must have a finite automaton or places, got {config.task.name}; prove a "
            "property with --property FILE"
        )
    if config.model.backbone != "causal":
        raise RequestError(f"backbone must be 'causal' to certify, got {config.model.backbone!r}")
    path, network = certificate_paths(output or folder, weights, soft=soft)
    advice = "; choose a folder by --output" if output is None else ""
    files.check_writable("output" if output else "certificate", path, advice, replaced=True)
    before = _stored(path)
    is_proof = before.get("verdict") == "proven"
    if output is not None and is_proof and before.get("weights_sha256") != sha256:
        raise RequestError(f"output must hold no proof of another run, got {path}")
    model = load_model(folder, weights)
    tables: dict[str, Any] | str
    with attributes_set(model, config.evaluation.attributes):
        certificate = proofs.prove_task(
            model, task, soft=soft, max_pairs=max_pairs, on_progress=on_progress
        )
        if isinstance(task, HasAutomaton):
            tables = certificate.tables(task.automaton())
        elif certificate.verdict != "proven":
            tables = f"the verdict is {certificate.verdict}"
        elif certificate.method == "structure":
            tables = structure_tables(certificate.model, task.places())
        else:
            tables = "the task has a head for each place"
        # The attributes of evaluation are part of the network that is written.
        with runs.lock_folder(path.parent, patience_s=runs.WRITING_S):
            if certificate.verdict != "proven":
                # Another verdict may only mean that fewer pairs were visited.
                with contextlib.suppress(RequestError):
                    load_proven(folder, weights, soft=soft, output=output)
                    return certificate, []
            row = {"weights": weights, "weights_sha256": sha256}
            return certificate, _write(path, network, row, certificate, tables, task)


def check_property(
    folder: Path,
    property_file: Path,
    weights: Weights = "last",
    *,
    soft: bool = False,
    max_states: int = 100_000,
    output: Path | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> tuple[dict[str, Any], Path | None]:
    """Prove or refute a safety property of a finished run's network, and write the verdict.

    The network is the proven one if :func:`certify_run` has stored a proof in ``output`` or in the
    run's folder, and otherwise the trained one with gates of 0 and 1. With ``soft``, or without
    softmax gates, it is the trained one as it is. If the task has an automaton, words that it does
    not allow are left out.

    The verdict is written to ``property-NAME.json`` with the property file's name without its
    ending. Other weights and ``soft`` change the name, as in :func:`certificate_paths`. It is open
    after ``max_states`` states of the network. The other arguments are as in :func:`certify_run`.

    Returns the verdict, with the names of letters and answers; and the file that was written: None
    if the verdict is open and the file holds another one on the same network and property.
    """
    outcome = load_outcome(folder)
    config, task = outcome.config, outcome.config.build_task()
    text = read_text("property", property_file)
    model = load_model(folder, weights)
    if not isinstance(model, TokenClassifier):
        raise RequestError(f"backbone must be 'causal' to certify, got {config.model.backbone!r}")
    # Blanks separate names in the file.
    letters, classes = (
        ["_".join(name.split()) for name in names] for names in names_of(task, model.main_head)
    )
    about = _about(weights, soft=soft)
    path = (output or folder) / f"property-{property_file.stem}{about}.json"
    files.check_writable("output" if output else "folder", path, replaced=True)
    try:
        watched = proofs.parse_property(text, letters, classes)
    except OptionError as error:
        raise RequestError(f"{property_file}: {error}") from error
    if isinstance(task, HasAutomaton):
        watched = watched.within(task.automaton())
    with attributes_set(model, config.evaluation.attributes):
        network, searched = "as trained", cast(ReadoutModel, model)
        if not soft:
            if proofs.can_harden(model):
                network, searched = "hardened", proofs.harden(model)
            for place in filter(None, (folder, output)):
                with contextlib.suppress(RequestError):
                    network, searched = "proven", load_proven(folder, weights, output=place)
        assert isinstance(searched, TokenClassifier)
        result = proofs.prove_safety(
            searched, watched, model.main_head, max_states, on_progress=on_progress
        )
    row = {
        "property": text,
        "network": network,
        "weights": weights,
        "weights_sha256": outcome.weights[WEIGHT_FILES[weights]],
        "verdict": result.verdict,
        "pairs": result.pairs,
        "word": [letters[token] for token in result.word],
        "answers": [classes[answer] for answer in result.answers],
        "state": result.state,
        "reason": result.reason,
    }
    with runs.lock_folder(path.parent, patience_s=runs.WRITING_S):
        before, same = _stored(path), ("property", "network", "weights_sha256")
        is_decided = before.get("verdict", "open") != "open"
        if result.verdict == "open" and is_decided and all(before.get(n) == row[n] for n in same):
            return row, None
        files.write_file(path, (json.dumps(row, indent=1) + "\n").encode())
    return row, path


def _stored(path: Path) -> dict[str, Any]:
    """Return a verdict that was written before; empty if there is none, or it is damaged."""
    with contextlib.suppress(RequestError):
        return files.read_json(path, "a verdict")
    return {}


@dataclass(frozen=True)
class ExploredRun:
    """The smallest machine that answers like a network, and its share of the labels of test words.

    ``letters`` and ``answers`` are their names.
    """

    machine: proofs.StateMachine
    letters: list[str]
    answers: list[str]
    accuracy: float


def explore_run(
    folder: Path,
    weights: Weights = "last",
    *,
    max_states: int = 100_000,
    on_progress: Callable[[int], None] | None = None,
) -> ExploredRun:
    """Visit all states, up to ``max_states``, of a run's network with gates of 0 and 1."""
    config = load_outcome(folder).config
    task, model = config.build_task(), load_model(folder, weights)
    if not isinstance(model, TokenClassifier) or not proofs.can_harden(model):
        raise RequestError(f"{folder} must hold a network with softmax gates, got another")
    with attributes_set(model, config.evaluation.attributes):
        network = proofs.harden(model)
        num_tokens = network.backbone.vocab_size
        machine = explore(Stepper.of(network), num_tokens, max_states, on_progress)
    if isinstance(machine, str):
        raise RequestError(f"the network of {folder} has no state machine: {machine}")
    examples = task.examples("test", 0, config.evaluation.test_size)
    targets = examples.targets[model.main_head]
    answers, _ = machine.run(examples.tokens)
    right = (answers == targets)[targets != IGNORED]
    names = names_of(task, model.main_head)
    return ExploredRun(machine.minimized(), *names, float(right.mean()))


def certificate_paths(folder: Path, weights: Weights, *, soft: bool) -> tuple[Path, Path]:
    """Return the paths of a certificate and of the proven network; each choice has its own."""
    about = _about(weights, soft=soft)
    return folder / f"certificate{about}.json", folder / f"certified{about}.safetensors"


def _about(weights: Weights, *, soft: bool) -> str:
    return ("" if weights == "last" else f"-{weights}") + ("-soft" if soft else "")


def _write(
    path: Path,
    network: Path,
    row: dict[str, Any],
    certificate: proofs.Certificate,
    tables: dict[str, Any] | str,
    task: Task,
) -> list[Path]:
    """Write a certificate and, if it is a proof, the network; return the files."""
    row |= certificate.to_plain()
    written = [path]
    network.unlink(missing_ok=True)
    if certificate.verdict == "proven":
        weights = certificate.model.state_dict()
        row["sha256"] = runs.save_weights(network.parent, network.name, weights)
        written.append(network)
    row["without_tables"] = tables if isinstance(tables, str) else None
    row["letters"], row["answers"] = names_of(task, certificate.head)
    if isinstance(task, Regex):
        row["checked_against"] = task.checked_against
    if certificate.method == "structure":
        row["places"] = list(task.heads)
    text = json.dumps(row, indent=1, allow_nan=False)
    if not isinstance(tables, str):
        # With a line for each number, the file would be many times as large.
        compact = json.dumps(tables, separators=(",", ":"))
        text = text.removesuffix("\n}") + f',\n "tables": {compact}\n}}'
    files.write_file(path, f"{text}\n".encode())
    return written


def load_proven(
    folder: Path | str,
    weights: Weights = "last",
    *,
    soft: bool = False,
    output: Path | str | None = None,
) -> ReadoutModel:
    """Load the proven network of a run, on the CPU, in evaluation mode.

    The arguments are as in :func:`certify_run`. A RequestError says if there is no proof of these
    weights.
    """
    folder = Path(folder)
    target = folder if output is None else Path(output)
    outcome = load_outcome(folder)
    path, network = certificate_paths(target, weights, soft=soft)
    row = files.read_json(path, "a certificate")
    verdict, sha256, trained = row.get("verdict"), row.get("sha256", ""), row.get("weights_sha256")
    if verdict != "proven":
        raise RequestError(f"{path} must hold a proof, got the verdict {verdict!r}")
    if trained != outcome.weights.get(WEIGHT_FILES[weights]):
        raise RequestError(
            f"{path} must be about the weights of the run, got weights_sha256={trained!r}; certify "
            "the run again"
        )
    tensors = runs.load_weights(target, network.name, sha256, stated_in=path.name)
    return model_with(tensors, outcome.config, network)
