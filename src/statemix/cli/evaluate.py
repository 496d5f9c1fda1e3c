"""``statemix evaluate``: score a trained model at any sequence lengths."""

import json
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from statemix.cli.parser import Argument
from statemix.errors import OptionError, RequestError
from statemix.files import append, check_writable
from statemix.tasks import Task
from statemix.training import RunConfig, Scores, load_model, load_outcome
from statemix.training.config import Device
from statemix.training.devices import build_fabric, check_device
from statemix.training.evaluation import SplitEvaluator, sequences_at
from statemix.training.outcome import Weights
from statemix.training.schedules import attributes_set
from statemix.training.settings import finite, to_plain

EVALUATIONS = "evaluations.jsonl"


@dataclass(frozen=True)
class Evaluate:
    """Score a trained model on the test split, at any sequence lengths.

    Every length adds a row to the table and a line to evaluations.jsonl in the run's folder, in
    which a loss that is not finite is null. Long sequences are processed in pieces, so
    activations do not grow with their length:

    statemix evaluate runs/s3 --lengths 16 64 4096
    """

    folder: Annotated[Path, Argument("RUN", positional=True)]
    """Folder of a finished run."""

    lengths: tuple[int, ...] = ()
    """Lengths in tokens; the training length if none is given."""

    weights: Weights = "last"
    """Weights to score."""

    sequences: int | None = None
    """Maximum number of sequences at each length (the run's test size if not given); a short length
    may have fewer."""

    tokens: int | None = None
    """Maximum number of tokens at each length (if not given, that of the run, but any number at the
    training length); at least one sequence is always scored."""

    device: Device = "auto"
    """Device that runs the model; auto uses a GPU if there is one."""

    output: Path | None = None
    """Folder that receives evaluations.jsonl (the run's folder if not given)."""

    json: bool = False
    """Print JSON lines instead of a table."""

    imports: tuple[str, ...] = ()
    """Python modules to import first, which register your own layers or tasks."""

    def run(self) -> None:
        """Score, print and record."""
        for name in ("sequences", "tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise RequestError(f"{name} must be at least 1, got {value}")
        if any(length < 1 for length in self.lengths):
            raise RequestError(f"lengths must be at least 1, got {list(self.lengths)}")
        check_device("device", self.device)
        config = load_outcome(self.folder).config
        task = config.build_task()
        fabric = build_fabric(self.device, config.runtime.precision)
        model = load_model(self.folder, self.weights).to(fabric.device)
        # Build all evaluators before scoring: an impossible length must fail before any output.
        evaluators = {
            length: self._evaluator(task, length, config)
            for length in self.lengths or (task.length,)
        }
        record = (self.output or self.folder) / EVALUATIONS
        advice = "" if self.output else "; choose a folder by --output"
        check_writable("output" if self.output else "folder", record, advice)
        rows = []
        with attributes_set(model, config.evaluation.attributes):
            for length, evaluator in evaluators.items():
                scores = evaluator(model, autocast=fabric.autocast)
                rows.append((self.weights, length, scores))
                row: dict[str, Any] = {"weights": self.weights, "length": length}
                row["scores"] = finite(to_plain(scores))
                time = datetime.now(UTC).isoformat(timespec="seconds")
                append(record, json.dumps({"time": time, "run": str(self.folder), **row}) + "\n")
                if self.json:
                    print(json.dumps(row), flush=True)
        if not self.json:
            print_scores(rows)

    def _evaluator(self, task: Task, length: int, config: RunConfig) -> SplitEvaluator:
        # The run's own numbers also come from these options.
        at_most = self.sequences or config.evaluation.test_size
        if self.tokens is not None or length != task.length:
            tokens = self.tokens or config.evaluation.tokens
            at_most = sequences_at(length, at_most=at_most, tokens=tokens)

        def evaluator(count: int) -> SplitEvaluator:
            size = config.batches.size
            return SplitEvaluator(task, "test", count, length, batch_size=size)

        def is_missing(count: int) -> bool:
            try:
                evaluator(count)
            except OptionError:
                return True
            return False

        try:
            evaluator(1)
        except OptionError as error:
            part = "lengths must have sequences in the test split"
            raise RequestError(f"{part}, got {length} ({error})") from error
        # There may be few different words of a short length.
        return evaluator(1 + bisect_left(range(2, at_most + 1), x=True, key=is_missing))


def print_scores(rows: Iterable[tuple[str, int, Mapping[str, Scores]]]) -> None:
    """Print rows of (weights, length, head -> scores) as a table."""
    console = Console(markup=False, highlight=False)
    if not console.is_terminal:
        console.width = 100
    table = Table(box=SIMPLE_HEAD)
    table.add_column("weights")
    for title in ("length", "head", "sequences", "token acc.", "MAD acc.", "sequence acc.", "loss"):
        table.add_column(title, justify="right")
    for weights, length, heads in rows:
        for head, scores in heads.items():
            numbers = scores.token_accuracy, scores.mad_accuracy, scores.sequence_accuracy
            cells = [f"{number:.4f}" for number in (*numbers, scores.loss)]
            table.add_row(weights, f"{length:,}", head, f"{scores.num_sequences:,}", *cells)
    console.print(table)
