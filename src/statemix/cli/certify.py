"""``statemix certify``: prove that a trained model is right on words of every length."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.console import Console

from statemix import files
from statemix.errors import RequestError
from statemix.report.numbers import counted
from statemix.tasks.automaton import HasAutomaton
from statemix.training.outcome import Weights

if TYPE_CHECKING:
    from statemix.analysis import Certified


@dataclass(frozen=True)
class Certify:
    """Prove that what a model has learned is right at every length, or find a word that fails.

    The gates of the model become 0 or 1 (the limit of a temperature of 0), the blocks that do not
    track the task are removed, and the readout is fitted again if it has leaned on them. The
    verdict is about this network. All pairs of a state of the network and a state of the task are
    visited, by the network's own steps. The verdict is one of:

    proven: right after every word of every length;
    refuted: wrong after the word that is shown, and after no shorter one;
    open: neither, for the reason that is given.

    The certificate is written to certificate.json in the run's folder, and a network that is proven
    to certified.safetensors. With --soft or other weights, their names say so, as in
    certificate-best_test-soft.json. A stored proof of the same weights stays until there is a new
    one. What the proof assumes is in docs/state_tracking.md.

    statemix certify runs/s3
    """

    folder: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]
    """Folder of a finished run."""

    soft: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Ask the model as it was trained, with all its blocks."""

    weights: Weights = "last"
    """Weights to ask about."""

    max_pairs: int = 100_000
    """Pairs of states after which the verdict is open."""

    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print JSON instead of text."""

    def run(self) -> None:
        """Search, write and print.

        Raises:
            RequestError: if the folder holds no finished run or cannot be written, the task has no
                finite automaton, or a number is out of range.
        """
        if self.max_pairs < 1:
            raise RequestError(f"max_pairs must be at least 1, got {self.max_pairs}")
        # Slow imports wait until the options have been checked.
        from statemix.analysis import certified, write_certificate
        from statemix.analysis.certified import certificate_files
        from statemix.training import load_model, load_outcome
        from statemix.training.schedules import attributes_set

        config = load_outcome(self.folder).config
        task = config.build_task()
        if not isinstance(task, HasAutomaton):
            raise RequestError(f"task must have a finite automaton, got {config.task.name}")
        automaton = task.automaton()
        if config.model.backbone != "causal":
            raise RequestError(
                f"backbone must be 'causal' to certify, got {config.model.backbone!r}"
            )
        path, _ = certificate_files(self.folder, self.weights, soft=self.soft)
        files.open_for_append("folder", path)
        model = load_model(self.folder, self.weights)
        with attributes_set(model, config.evaluation.attributes), _progress() as show:
            found = certified(
                model, automaton, soft=self.soft, max_pairs=self.max_pairs, on_progress=show
            )
            # Here the attributes of evaluation are part of the network.
            written = write_certificate(self.folder, found, weights=self.weights, soft=self.soft)
        stored = f"written: {', '.join(map(str, written))}"
        if not written:
            stored = f"not written: {path} holds a proof of these weights, which stays"
        if self.json:
            print(json.dumps(found.to_plain(), allow_nan=False))
            # What is printed is not what the file holds.
            if not written:
                print(f"statemix: {stored}", file=sys.stderr)
        else:
            self._print(found, stored)

    def _print(self, found: "Certified", stored: str) -> None:
        certificate = found.certificate
        said = {
            "proven": "right after every word of every length",
            "refuted": f"wrong after {' '.join(map(str, certificate.word))}, a shortest such word",
            "open": certificate.reason,
        }
        network = {"as trained": "as trained", "hardened": "with gates of 0 and 1"}.get(
            found.network,
            f"with gates of 0 and 1, {len(found.tracking or ())} of {found.num_blocks} blocks",
        )
        if found.network == "refitted":
            network += ", readout fitted again"
        lines = {"network": network}
        if certificate.verdict == "refuted":
            answer = "no number" if certificate.answer is None else certificate.answer
            lines["answer"] = f"{answer} after this word, where {certificate.expected} is right"
        lines["pairs"] = f"{certificate.pairs:,} visited"
        if certificate.verdict == "open" and certificate.checked:
            lines["checked"] = (
                f"right after every word of up to {counted(certificate.checked, 'token')}"
            )
        if certificate.margin is not None:
            lines["margin"] = f"{certificate.margin:.4g} between the right answer and the next one"
        if found.gate_margin is not None:
            lines["gates"] = f"{found.gate_margin:.4g} at least between the two largest of a row"
        # Otherwise the verdict itself is about the trained network, or there is nothing to compare.
        if (found.network == "as trained") != (certificate.verdict == "proven"):
            lines["soft"] = _soft(found)
        console = Console(highlight=False, markup=False)
        console.soft_wrap = not console.is_terminal
        console.print(f"{certificate.verdict}: {said[certificate.verdict]}")
        for name, line in lines.items():
            console.print(f"  {name:<8} {line}")
        console.print(stored)


def _soft(found: "Certified") -> str:
    """Say up to which length the network is right with gates as trained."""
    tokens, reason = found.horizon.tokens, found.horizon.reason
    if tokens is None:
        return f"no bound: {reason}"
    blocks = "all blocks" if found.tracking is None else "these blocks"
    length = (
        f"right up to {counted(tokens, 'token')} at least"
        if tokens
        else "the bound covers no length"
    )
    return f"{blocks} with gates as trained: {length}; {reason}"


@contextmanager
def _progress() -> Iterator[Callable[[int], None]]:
    """Show the number of pairs visited: in place on a terminal, nothing elsewhere."""
    console = Console(file=sys.stderr, highlight=False, markup=False)
    with console.status("0 pairs") as status:
        yield lambda pairs: status.update(f"{pairs:,} pairs")
