"""From a trained model to the network that is proven, and the files that hold it."""

import copy
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from statemix.analysis.certificate import Certificate, certify
from statemix.analysis.hardening import Pruned, can_harden, can_prune, hardened, pruned
from statemix.analysis.horizon import Horizon, horizon
from statemix.analysis.refitting import refitted
from statemix.analysis.ties import Gaps, watched
from statemix.errors import RequestError
from statemix.models import SyntheticModel
from statemix.tasks.automaton import Automaton
from statemix.training import folder as runs
from statemix.training import load_outcome
from statemix.training.checkpoint import write_file
from statemix.training.outcome import WEIGHT_FILES, Weights
from statemix.training.parts import model_with

Network = Literal["pruned", "refitted", "hardened", "as trained"]


@dataclass(frozen=True)
class Certified:
    """A network that was asked, and the answer.

    Attributes:
        certificate: what the search of all words has found.
        network: what was done to the trained model: "pruned" (its gates are 0 or 1, and only blocks
            that track are read), "refitted" (pruned, and its readout fitted again), "hardened" (its
            gates are 0 or 1) or "as trained".
        model: the network.
        tracking: blocks that were kept; None if nothing was pruned.
        num_blocks: blocks of the trained model; None if nothing was pruned.
        gate_margin: smallest difference between the largest and the second largest raw gate of a
            row whose gates are 0 and 1, among the blocks that were kept; None as trained.
        horizon: length up to which the network is proven right with its gates as trained. If
            blocks were pruned, it says nothing of the trained network, which has other blocks, too.
    """

    certificate: Certificate
    network: Network
    model: SyntheticModel
    horizon: Horizon
    tracking: tuple[int, ...] | None = None
    num_blocks: int | None = None
    gate_margin: float | None = None

    def to_plain(self) -> dict[str, Any]:
        """Return everything but the model as JSON data, without NaN or infinities."""
        found = self.certificate
        return {
            "verdict": found.verdict,
            "pairs": found.pairs,
            "margin": found.margin,
            "word": list(found.word),
            "answer": found.answer,
            "expected": found.expected,
            "checked": found.checked,
            "reason": found.reason,
            "network": self.network,
            "tracking": None if self.tracking is None else list(self.tracking),
            "num_blocks": self.num_blocks,
            "gate_margin": self.gate_margin,
            "horizon": self.horizon.tokens,
            "horizon_reason": self.horizon.reason,
        }


def certified(
    model: SyntheticModel,
    automaton: Automaton,
    *,
    head: str | None = None,
    soft: bool = False,
    max_pairs: int = 100_000,
    on_progress: Callable[[int], None] | None = None,
) -> Certified:
    """Harden a trained model, keep the blocks that track, and ask whether it is right for ever.

    If the network without the other blocks is not proven, its readout is fitted again. If that does
    not help, the hardened network is asked with all its blocks. A model without softmax gates is
    asked as it is. So the answer is about the network that is returned, which need not answer as
    the trained one does.

    A proof also needs gates that no rounding can move: if two of a row differ by less than another
    order of sums can change them, the verdict is open.

    Args:
        model: the trained model; it is not changed, but put into evaluation mode.
        automaton: the automaton, with the model's tokens.
        head: head that answers; None means the first one.
        soft: ask the model as it is, and bound the length up to which it is right by the search in
            its hardened self.
        max_pairs: as in :func:`certify`.
        on_progress: as in :func:`certify`.

    Raises:
        ValueError: as in :func:`certify`.
    """
    head = next(iter(model.heads)) if head is None else head

    def ask(network: SyntheticModel) -> Certificate:
        return certify(network, automaton, head=head, max_pairs=max_pairs, on_progress=on_progress)

    def length(hard: SyntheticModel, tracking: tuple[int, ...] | None = None) -> Horizon:
        return horizon(
            _with_gates_of(model, hard).cpu(),
            copy.deepcopy(hard).cpu(),
            automaton,
            head=head,
            tracking=tracking,
            max_pairs=max_pairs,
        )

    if soft or not can_harden(model):
        certificate = ask(model)
        if certificate.verdict == "proven":
            bound = Horizon(None, "the trained network itself is proven")
        else:
            bound = length(hardened(model) if can_harden(model) else model)
        return Certified(certificate, "as trained", model, bound)
    hard = hardened(model)
    if can_prune(hard):
        cut = pruned(hard, automaton)
        for name, found in _candidates(cut, automaton, head):
            with watched(found, cut.tracking) as gaps:
                certificate = ask(found)
            if certificate.verdict == "proven":
                return Certified(
                    _unless_tied(certificate, gaps),
                    name,
                    found,
                    length(found, cut.tracking),
                    cut.tracking,
                    cut.num_blocks,
                    gaps.finite,
                )
    with watched(hard) as gaps:
        certificate = ask(hard)
    if certificate.verdict == "proven":
        bound = length(hard)
    else:
        bound = Horizon(None, "the network is not proven with gates of 0 and 1")
    answer = _unless_tied(certificate, gaps)
    return Certified(answer, "hardened", hard, bound, gate_margin=gaps.finite)


def _unless_tied(certificate: Certificate, gaps: Gaps) -> Certificate:
    """Return a proof only if no rounding can choose other gates."""
    if certificate.verdict != "proven" or gaps.nearest > 0:
        return certificate
    reason = f"rounding may swap two gates of a row, which differ by {gaps.smallest:.2g}"
    return replace(certificate, verdict="open", reason=reason)


def _candidates(
    cut: Pruned, automaton: Automaton, head: str
) -> Iterator[tuple[Network, SyntheticModel]]:
    """Yield the pruned network, and then, if its blocks hold anything, with another readout."""
    yield "pruned", cut.model
    if cut.varying:
        yield "refitted", refitted(cut.model, automaton, head)


def _with_gates_of(model: SyntheticModel, other: SyntheticModel) -> SyntheticModel:
    """Return a copy of ``other`` with the gate temperatures of ``model``."""
    copied = copy.deepcopy(other)
    buffers = dict(model.named_buffers())
    for name, buffer in copied.named_buffers():
        buffer.copy_(buffers[name])
    return copied


def certificate_files(folder: Path, weights: Weights, *, soft: bool) -> tuple[Path, Path]:
    """Return the files of one question: the certificate, and the network that is proven.

    Every question has its own, so that no answer replaces the one to another question.
    """
    about = ("" if weights == "last" else f"-{weights}") + ("-soft" if soft else "")
    return folder / f"certificate{about}.json", folder / f"certified{about}.safetensors"


def write_certificate(
    folder: Path, found: Certified, *, weights: Weights, soft: bool = False
) -> list[Path]:
    """Write a certificate and, if it is a proof, the network that is proven.

    A stored proof of the same weights stays, as another verdict may mean no more than that fewer
    pairs were visited.

    Args:
        folder: folder of the run.
        found: the answer.
        weights: the weights that were asked about.
        soft: whether the model was asked as it is.

    Returns:
        The files; none if a stored proof stays.

    Raises:
        RequestError: if the folder holds no finished run or cannot be written.
    """
    path, network = certificate_files(folder, weights, soft=soft)
    proven = found.certificate.verdict == "proven"
    if not proven and _is_proven(folder, weights, soft=soft):
        return []
    sha256 = load_outcome(folder).weights[WEIGHT_FILES[weights]]
    row = {"weights": weights, "weights_sha256": sha256, **found.to_plain()}
    try:
        network.unlink(missing_ok=True)
        if proven:
            row["sha256"] = runs.save_weights(folder, network.name, found.model.state_dict())
        write_file(path, (json.dumps(row, indent=1, allow_nan=False) + "\n").encode())
    except OSError as error:
        raise RequestError(f"folder must be writable, got {folder}: {error.strerror}") from error
    return [path, network] if proven else [path]


def _is_proven(folder: Path, weights: Weights, *, soft: bool) -> bool:
    try:
        load_certified(folder, weights, soft=soft)
    except RequestError:
        return False
    return True


def load_certified(
    folder: Path | str, weights: Weights = "last", *, soft: bool = False
) -> SyntheticModel:
    """Load the network of a run that is proven, on the CPU, in evaluation mode.

    Args:
        folder: the run's folder.
        weights: the weights that were asked about.
        soft: whether the model was asked as it is.

    Raises:
        RequestError: if the folder holds no finished run, no proof or one of other weights, or its
            files are damaged.
    """
    folder = Path(folder)
    outcome = load_outcome(folder)
    path, network = certificate_files(folder, weights, soft=soft)
    try:
        row = json.loads(path.read_text())
        verdict, sha256, trained = row["verdict"], row.get("sha256", ""), row.get("weights_sha256")
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise RequestError(f"{path} must hold a certificate, got: {error!r}") from error
    if verdict != "proven":
        raise RequestError(f"{path} must hold a proof, got the verdict {verdict!r}")
    if trained != outcome.weights.get(WEIGHT_FILES[weights]):
        raise RequestError(
            f"{path} must be about the weights of the run, got weights_sha256={trained!r}; certify "
            "the run again"
        )
    tensors = runs.load_weights(folder, network.name, sha256, stated_in=path.name)
    return model_with(tensors, outcome.config, network)
