"""``statemix inspect``: look into the layers of a trained model."""

import contextlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from statemix import files
from statemix.cli.parser import Argument
from statemix.errors import RequestError
from statemix.training.progress import log_console
from statemix.training.settings import built

if TYPE_CHECKING:
    from statemix.tasks import Task
    from statemix.tasks.permutation import Permutation
    from statemix.training.attempts import Attempt
    from statemix_lab.inspection.layer_numbers import LayerNumbers

NUMBERS = "numbers.json"
# More would not fit into a picture.
_MOST_SEQUENCES, _MOST_TOKENS = 16, 512
# Units that are drawn unless asked otherwise.
_UNITS = 4
_MOMENT = ("step", "attempt", "representations")


_Found = dict[str, Any]
"""What there is to show of a run, as numbers.json holds it."""


@dataclass(frozen=True)
class Inspect:
    """Show what the layers of a trained model do on example sequences, and what it has learned.

    A layer that runs a linear recurrence gets a line in a table, and pictures: the eigenvalues of
    its transitions, its normalised gates over time, and its block attention matrix, that is, what
    the input at each time adds to the state at each later one. The numbers behind the pictures are
    written to numbers.json. Other layers, such as an LSTM, are named.

    Of a model of one BD-LRU with gates of softmax or column_softmax, the automaton is read off that
    it becomes when every gate is set to 0 or 1: which entries each token copies or moves, which
    blocks track the task, which are idle and which repeat others, and what group the blocks that
    are kept generate together.

    Another picture shows the gates before and after sharpening: at the gate temperature at which
    training began beside that at which it ended. Without a schedule of the temperature, it shows
    the gates as trained beside gates of 0 and 1.

    For a permutation group, a picture shows the race that decides whether it can be tracked: the
    share of each irreducible representation in the transitions, during training.

    statemix inspect runs/s3 --sequences 1
    """

    folder: Annotated[Path, Argument("RUN", positional=True)]
    """Folder of a finished run."""

    layer: int | None = None
    """Layer to show, counted from 0 (all if not given)."""

    units: tuple[int, ...] = ()
    """Blocks, channels or heads whose gates and mixing matrices are drawn (the first four if not
    given); the table and the eigenvalues are about all of them."""

    split: Literal["train", "validation", "test"] = "test"
    """Split of the sequences."""

    start: int = 0
    """Index of the first sequence in its split."""

    sequences: int = 2
    """Number of sequences."""

    tokens: int = 64
    """Tokens of each sequence to show, from its beginning."""

    weights: Literal["last", "best_validation", "best_test"] = "last"
    """Weights to look at."""

    output: Path | None = None
    """Folder of the pictures and numbers (if not given: inspect in the run's folder)."""

    json: bool = False
    """Print the table as JSON."""

    imports: tuple[str, ...] = ()
    """Python modules to import first, which register your own layers or tasks."""

    def run(self) -> None:
        """Measure, write and print."""
        self._check()
        # Slow imports wait until the options have been checked.
        import torch

        from statemix.automaton import HasAutomaton
        from statemix.proofs.token_maps import join_actions, read_actions
        from statemix.tasks.permutation import Permutation
        from statemix.training import load_model, load_outcome
        from statemix.training.schedules import attributes_set
        from statemix_lab.inspection.layer_numbers import inspected, run_sharpening
        from statemix_lab.inspection.layer_pictures import by_role

        outcome = load_outcome(self.folder)
        config, task = outcome.config, outcome.config.build_task()
        model = load_model(self.folder, self.weights)
        stop, part = self.start + self.sequences, "start" if self.start else "sequences"
        examples = built(part, task.examples, self.split, self.start, stop)
        tokens = examples.tokens[:, : self.tokens]
        lengths = [tokens.shape[1]] * len(tokens)
        if examples.lengths is not None:
            lengths = [min(length, self.tokens) for length in examples.lengths.tolist()]
            tokens = tokens[:, : max(lengths)]
        with attributes_set(model, config.evaluation.attributes):
            automaton = task.automaton() if isinstance(task, HasAutomaton) else None
            learned = read_actions(model, automaton)
            # Blocks that track say most.
            telling = [block["block"] for block in by_role(learned)[:_UNITS]]
            units = self.units or telling or range(_UNITS)
            layers = inspected(model, torch.from_numpy(tokens), lengths, units=units)
            name = task.group.name if isinstance(task, Permutation) else None
            joined = join_actions(model, learned, automaton, name=name)
            sharpened = run_sharpening(
                model, config, task, torch.from_numpy(tokens), lengths, units=units
            )
        layers = self._chosen(layers)
        shown = {layer["layer"] for layer in layers}
        shown_tokens = {
            f"sequence {self.start + place}": row[:length].tolist()
            for place, (row, length) in enumerate(zip(tokens, lengths, strict=True))
        }
        race = self._race(task)
        found: _Found = {
            "tokens": shown_tokens,
            "layers": layers,
            "actions": learned,
            "joint": joined,
            "sharpening": [gates for gates in sharpened if gates["layer"] in shown],
            "representations": race,
            "attempts": [asdict(attempt) for attempt in outcome.attempts] if race else [],
        }
        self._write(found, task, outcome.attempts)
        if self.json:
            print(json.dumps(_lines(found), indent=1, allow_nan=False))
        else:
            self._print(found, judged=automaton is not None, proven=self._is_proven())

    def _is_proven(self) -> bool:
        """Return whether `statemix certify` has stored a proof of the weights."""
        from statemix.training.certificates import load_proven

        with contextlib.suppress(RequestError):
            load_proven(self.folder, self.weights)
            return True
        return False

    def _race(self, task: "Task") -> list[dict[str, Any]]:
        """Return the representations of the task's group during training, if the run kept them."""
        from statemix.tasks.groups import components
        from statemix.tasks.permutation import Permutation
        from statemix.training.folder import METRICS, read_metrics

        if not isinstance(task, Permutation):
            return []
        names = {part.name for part in components(task.group.name)[1:]}
        try:
            # Absent in runs of versions that did not keep them.
            rows = [row for row in read_metrics(self.folder) if row.get("representations")]
            if any(row["representations"].keys() != names for row in rows):
                raise ValueError(f"representations of {task.group.name} must be {names}")
        except FileNotFoundError:
            return []
        except (OSError, ValueError, AttributeError, RequestError) as error:
            path = self.folder / METRICS
            raise RequestError(f"{path} must hold a run's metrics, got: {error!r}") from error
        return [{name: row.get(name) for name in _MOMENT} for row in rows]

    def _check(self) -> None:
        for name, most in (("sequences", _MOST_SEQUENCES), ("tokens", _MOST_TOKENS)):
            value = getattr(self, name)
            if not 1 <= value <= most:
                raise RequestError(f"{name} must be in 1..{most}, got {value}")
        for name in ("start", "layer"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise RequestError(f"{name} must be at least 0, got {value}")
        if len(set(self.units)) < len(self.units) or any(unit < 0 for unit in self.units):
            raise RequestError(f"units must be distinct and at least 0, got {list(self.units)}")

    def _chosen(self, layers: "list[LayerNumbers]") -> "list[LayerNumbers]":
        if self.layer is not None:
            if self.layer >= len(layers):
                raise RequestError(f"layer must be in 0..{len(layers) - 1}, got {self.layer}")
            layers = [layers[self.layer]]
        most = max((one["units"] or 0 for one in layers), default=0)
        if most and any(unit >= most for unit in self.units):
            raise RequestError(f"units must be in 0..{most - 1}, got {list(self.units)}")
        return layers

    @property
    def _folder(self) -> Path:
        return self.output or self.folder / "inspect"

    def _write(self, found: _Found, task: "Task", attempts: "Sequence[Attempt]") -> None:
        from statemix.training.folder import lock_folder
        from statemix_lab.inspection import layer_pictures as drawing
        from statemix_lab.studies.figure import png

        advice = "" if self.output else "; choose a folder by --output"
        files.check_writable("output", self._folder / NUMBERS, advice, replaced=True)
        numbers = {
            "run": str(self.folder),
            "weights": self.weights,
            "split": self.split,
            "start": self.start,
            **found,
        }
        drawn = dict(drawing.pictures(found["layers"], found["tokens"], found["sharpening"]))
        actions = found["actions"]
        if actions and len(actions[0]["sources"][0]) <= drawing.TALLEST:
            title = "layer 0: the entry that each entry copies"
            drawn["actions.png"] = drawing.draw_actions(actions, title=title)
        if race := found["representations"]:
            group = cast("Permutation", task).group.name
            drawn["representations.png"] = drawing.draw_race(race, group, attempts)
        contents = {name: png(figure) for name, figure in drawn.items()}
        contents[NUMBERS] = (json.dumps(numbers, allow_nan=False) + "\n").encode()
        with lock_folder(self._folder):
            for name, content in contents.items():
                files.write_file(self._folder / name, content)

    def _print(self, found: _Found, *, judged: bool, proven: bool) -> None:
        from statemix_lab.inspection import layer_text as text

        console = log_console()
        table = text.table(found["layers"], found["sharpening"], found["joint"])
        if table.lines:
            title = f"{self.folder}, weights {self.weights}"
            console.print(table.as_rich(title) if console.is_terminal else table.as_text())
            console.print(text.legend(table))
        for sentence in text.without(found["layers"]):
            console.print(sentence)
        if found["actions"]:
            for sentence in text.sentences(found["actions"], judged=judged, proven=proven):
                console.print(sentence)
        if found["joint"] is not None:
            console.print(text.together(found["joint"]))
        console.print(f"written: {self._folder}")


def _lines(found: _Found) -> list[dict[str, Any]]:
    """Return the table as JSON data."""
    names = ("layer", "module", "kind", "unit", "units", "size", "summary")
    sharpened = {
        gates["layer"]: {
            moment: {name: gates[moment][name] for name in ("temperature", "gate_entropy")}
            for moment in ("before", "after")
        }
        for gates in found["sharpening"]
    }
    return [
        {
            **{name: layer[name] for name in names},
            "sharpening": sharpened.get(layer["layer"]),
            "joint": found["joint"],
        }
        for layer in found["layers"]
    ]
