"""``statemix certify``: prove that a trained model is right on words of every length."""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from rich.console import Console

from statemix.cli.parser import Argument
from statemix.errors import RequestError, RunsFailedError
from statemix.proofs import Certificate
from statemix.tasks import names_of
from statemix.training.certificates import certificate_paths, certify_run, check_property
from statemix.training.outcome import Weights, load_config
from statemix.training.progress import log_console


@dataclass(frozen=True)
class Certify:
    """Prove that a trained model is right at every length, or find a shortest word that fails.

    The gates of the model become 0 or 1 (the limit of a temperature of 0), blocks that do not track
    the task are removed, and the readout is fitted again if it relied on them. The verdict is about
    this network. The search visits all pairs of a state of the network and a state of the task, by
    the network's own steps. The verdict is one of:

    proven: right after every word of every length;
    refuted: wrong after the printed word, right after all shorter words;
    open: neither, for the printed reason.

    The exit code is 0 if the verdict is proven, and 1 otherwise.

    The certificate is written to certificate.json in the run's folder (or --output), and a proven
    network to certified.safetensors. With --soft or other weights, the names of the files say so,
    as in certificate-best_test-soft.json. A stored proof of the same weights is kept unless a new
    proof replaces it. The page "State tracking with proofs" lists the
    assumptions of the proof. If the task moves the contents of places and may have too many states
    to visit, the proof is one by structure.

    statemix certify runs/s3
    """

    folder: Annotated[Path, Argument("RUN", positional=True)]
    """Folder of a finished run."""

    soft: bool = False
    """Search the model as it was trained, with all its blocks."""

    weights: Weights = "last"
    """Weights of the network."""

    max_pairs: int = 100_000
    """Maximum number of pairs of states; if the search needs more, the verdict is open."""

    property: Path | None = None
    """File with a safety property, to be proven instead of the task (the page "Automata as input"
    describes the file)."""

    output: Path | None = None
    """Folder for the certificate and the network (the run's folder if not given)."""

    json: bool = False
    """Print JSON instead of text."""

    imports: tuple[str, ...] = ()
    """Python modules to import first, which register your own layers or tasks."""

    def run(self) -> None:
        """Search, write and print."""
        if self.max_pairs < 1:
            raise RequestError(f"max_pairs must be at least 1, got {self.max_pairs}")
        verdict = self._certify() if self.property is None else self._check(self.property)
        if verdict != "proven":
            raise RunsFailedError(f"the verdict on {self.folder} is {verdict}")

    def _certify(self) -> str:
        with counted("pairs") as show:
            found, written = certify_run(
                self.folder,
                self.weights,
                soft=self.soft,
                max_pairs=self.max_pairs,
                output=self.output,
                on_progress=show,
            )
        stored = f"written: {', '.join(map(str, written))}"
        if not written:
            path, _ = certificate_paths(self.output or self.folder, self.weights, soft=self.soft)
            stored = f"not written: {path} holds a proof of these weights, which stays"
        if self.json:
            print(json.dumps(found.to_plain(), allow_nan=False))
            # What is printed is not what the file holds.
            print(f"statemix: {stored}\n" if not written else "", end="", file=sys.stderr)
        else:
            task = load_config(self.folder).build_task()
            print_certificate(found, *names_of(task, found.head))
            log_console().print(stored)
        return found.verdict

    def _check(self, file: Path) -> str:
        with counted("states") as show:
            row, path = check_property(
                self.folder,
                file,
                self.weights,
                soft=self.soft,
                max_states=self.max_pairs,
                output=self.output,
                on_progress=show,
            )
        verdict: str = row["verdict"]
        if self.json:
            print(json.dumps(row))
            return verdict
        word = " ".join(row["word"]) or "the empty word"
        said = {
            "proven": "no word leads to a bad state",
            "refuted": f"{word} leads to {row['state']}; no shorter word leads to a bad state",
            "open": row["reason"],
        }
        networks = {"proven": "the proven one", "hardened": "with gates of 0 and 1"}
        print(f"{verdict}: {said[verdict]}")
        print(f"  network  {networks.get(row['network'], row['network'])}")
        if row["answers"]:
            print(f"  answers  {' '.join(row['answers'])}")
        if verdict != "open":
            print(f"  pairs    {row['pairs']:,} visited")
        stays = "not written: the file holds a verdict, which stays"
        print(f"written: {path}" if path else stays)
        return verdict


def print_certificate(found: Certificate, letters: Sequence[str], answers: Sequence[str]) -> None:
    """Print a certificate, with the names of letters and answers."""
    result, network = found.result, found.network
    word = " ".join(letters[token] for token in result.word) or "the empty word"
    said = {
        "proven": "right after every word of every length",
        "refuted": f"wrong after {word}, a shortest such word",
        "open": result.reason,
    }
    lines = {"network": "as trained" if network == "as trained" else "with gates of 0 and 1"}
    if network not in ("as trained", "hardened"):
        lines["network"] += f", {len(found.tracking or ())} of {found.num_blocks} blocks"
    if network == "refitted":
        lines["network"] += ", readout fitted again"
    if result.expected is not None:
        answer = "no number" if result.answer is None else answers[result.answer]
        lines["answer"] = f"{answer} after this word, where {answers[result.expected]} is right"
    if found.method == "structure" and result.verdict == "proven":
        lines["proof"] = "by structure: tokens do to entries what they do to places"
    if found.method != "structure":
        lines["pairs"] = f"{result.pairs:,} visited"
    bound = (found.horizon.tokens or 0) if network == "as trained" else 0
    if result.verdict == "open" and (checked := max(result.checked or 0, bound)):
        lines["checked"] = f"right after every word of up to {_tokens(checked)}"
    if result.margin is not None:
        lines["margin"] = f"{result.margin:.4g} between the right answer and the next one"
    if (gates := found.gate_margin) is not None:
        lines["gates"] = f"{gates:.4g} at least between the largest raw gate and the next one"
    # Otherwise the verdict itself is about the trained network, or there is nothing to compare.
    if found.method == "search" and result.verdict == "proven" and network != "as trained":
        lines["soft"] = _soft(found)
    console = log_console()
    console.print(f"{result.verdict}: {said[result.verdict]}")
    for name, line in lines.items():
        console.print(f"  {name:<8} {line}")


def _soft(found: Certificate) -> str:
    """Say up to which length the network is right with gates as trained."""
    tokens, reason = found.horizon.tokens, found.horizon.reason
    if tokens is None:
        return f"no bound: {reason}"
    blocks = "all blocks" if found.tracking is None else "these blocks"
    length = f"right up to {_tokens(tokens)} at least" if tokens else "no length is guaranteed"
    return f"{blocks} with gates as trained: {length}. {reason[0].upper()}{reason[1:]}"


def _tokens(count: int) -> str:
    return "1 token" if count == 1 else f"{count:,} tokens"


@contextmanager
def counted(what: str) -> Iterator[Callable[[int], None]]:
    """Show how many pairs or states are visited: in place on a terminal, nothing elsewhere."""
    console = Console(file=sys.stderr, highlight=False, markup=False)
    with console.status(f"0 {what}") as status:
        yield lambda number: status.update(f"{number:,} {what}")
