"""``statemix inspect``: look into the layers of a trained model."""

import contextlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict, cast

from rich.console import Console

from statemix import files
from statemix.cli.parser import Argument
from statemix.errors import RequestError
from statemix.training.settings import built, checked

if TYPE_CHECKING:
    from torch import Tensor

    from statemix.models import ReadoutModel
    from statemix.proofs.joint_action import JointAction
    from statemix.proofs.token_maps import BlockActions
    from statemix.tasks import Examples, Task
    from statemix.training import RunConfig
    from statemix.training.attempts import Attempt
    from statemix_lab.inspection.layer_numbers import LayerNumbers, Sharpening

NUMBERS = "numbers.json"
# More would not fit into a picture.
_MOST_SEQUENCES, _MOST_TOKENS = 16, 512
# Units that are drawn unless asked otherwise.
_UNITS = 4


class Moment(TypedDict):
    """The representations in the transitions at one step, and the attempt of a search."""

    step: int
    attempt: int | None
    representations: dict[str, float]


_MOMENT = {"step": int, "attempt": int | None, "representations": dict[str, float]}


def _moment(row: dict[str, Any]) -> Moment:
    parts = {name: checked(kind, row.get(name), name) for name, kind in _MOMENT.items()}
    return cast(Moment, parts)


@dataclass(frozen=True)
class Race:
    """The representations of a group in the transitions, during training.

    Attributes:
        group: name of the group.
        rows: rows of the run's metrics that hold them.
        attempts: attempts of the run's search.
    """

    group: str
    rows: list[Moment]
    attempts: "tuple[Attempt, ...]"


@dataclass(frozen=True)
class _Found:
    """What there is to show of a run.

    Attributes:
        tokens: name of each sequence -> its tokens.
        layers: the layers that were asked for.
        learned: what tokens do to the blocks of the only layer; empty for other models.
        joined: what the blocks that are kept do together.
        sharpened: gates before and after sharpening, of these layers.
        race: the representations during training.
    """

    tokens: dict[str, list[int]]
    layers: "list[LayerNumbers]"
    learned: "list[BlockActions]"
    joined: "JointAction | None"
    sharpened: "list[Sharpening]"
    race: "Race | None"


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
        from statemix.proofs.joint_action import join_actions
        from statemix.proofs.token_maps import read_actions
        from statemix.tasks.permutation import Permutation
        from statemix.training import load_model, load_outcome
        from statemix.training.schedules import attributes_set
        from statemix_lab.inspection.layer_numbers import inspected
        from statemix_lab.inspection.layer_pictures import by_role

        outcome = load_outcome(self.folder)
        config, task = outcome.config, outcome.config.build_task()
        model = load_model(self.folder, self.weights)
        tokens, lengths = _cut(self._examples(task), self.tokens)
        with attributes_set(model, config.evaluation.attributes):
            automaton = task.automaton() if isinstance(task, HasAutomaton) else None
            learned = read_actions(model, automaton)
            # Blocks that track say most.
            telling = [one["block"] for one in by_role(learned)[:_UNITS]]
            units = self.units or telling or range(_UNITS)
            layers = inspected(model, torch.from_numpy(tokens), lengths, units=units)
            name = task.group.name if isinstance(task, Permutation) else None
            joined = join_actions(model, learned, automaton, name=name)
            sharpened = _sharpened(model, config, task, torch.from_numpy(tokens), lengths, units)
        layers = self._chosen(layers)
        shown = {one["layer"] for one in layers}
        found = _Found(
            tokens={
                f"sequence {self.start + place}": row[:length].tolist()
                for place, (row, length) in enumerate(zip(tokens, lengths, strict=True))
            },
            layers=layers,
            learned=learned,
            joined=joined,
            sharpened=[one for one in sharpened if one["layer"] in shown],
            race=self._race(task, outcome.attempts),
        )
        self._write(found)
        if self.json:
            lines = _lines(found)
            print(json.dumps(lines, indent=1, allow_nan=False))
        else:
            self._print(found, judged=automaton is not None, proven=self._is_proven())

    def _is_proven(self) -> bool:
        """Return whether `statemix certify` has stored a proof of the weights."""
        from statemix.training.certificates import load_proven

        with contextlib.suppress(RequestError):
            load_proven(self.folder, self.weights)
            return True
        return False

    def _race(self, task: "Task", attempts: "tuple[Attempt, ...]") -> "Race | None":
        """Return the representations of the task's group during training, if the run kept them."""
        from statemix.tasks.groups import components
        from statemix.tasks.permutation import Permutation
        from statemix.training.folder import METRICS, read_metrics

        if not isinstance(task, Permutation):
            return None
        names = {part.name for part in components(task.group.name)[1:]}
        try:
            # Absent in runs of versions that did not keep them.
            found = [row for row in read_metrics(self.folder) if row.get("representations")]
            rows = [_moment(row) for row in found]
            for row in rows:
                if row["representations"].keys() != names:
                    raise ValueError(f"representations of {task.group.name} must be {names}")
        except FileNotFoundError:
            return None
        except (OSError, ValueError, AttributeError, RequestError) as error:
            path = self.folder / METRICS
            raise RequestError(f"{path} must hold a run's metrics, got: {error!r}") from error
        return Race(task.group.name, rows, attempts) if rows else None

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

    def _examples(self, task: "Task") -> "Examples":
        from statemix.training.devices import check_examples_fit

        stop = self.start + self.sequences
        check_examples_fit("sequences", self.sequences, task, self.sequences, task.length)
        part = "start" if self.start else "sequences"
        examples: Examples = built(part, task.examples, self.split, self.start, stop)
        return examples

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

    def _write(self, found: _Found) -> None:
        from statemix.training.folder import lock_folder
        from statemix_lab.inspection import layer_pictures as drawing
        from statemix_lab.studies.figure import png

        advice = "" if self.output else "; choose a folder by --output"
        files.open_for_append("output", self._folder / NUMBERS, advice)
        numbers = {
            "run": str(self.folder),
            "weights": self.weights,
            "split": self.split,
            "start": self.start,
            "tokens": found.tokens,
            "layers": found.layers,
            "actions": found.learned,
            "joint": found.joined,
            "sharpening": found.sharpened,
            "representations": found.race.rows if found.race else [],
            "attempts": [asdict(one) for one in found.race.attempts] if found.race else [],
        }
        drawn = dict(drawing.pictures(found.layers, found.tokens, found.sharpened))
        if drawing.drawable(found.learned):
            title = "layer 0: the entry that each entry copies"
            drawn["actions.png"] = drawing.draw_actions(found.learned, title=title)
        if found.race is not None:
            race = found.race
            drawn["representations.png"] = drawing.draw_race(race.rows, race.group, race.attempts)
        contents = {name: png(figure) for name, figure in drawn.items()}
        contents[NUMBERS] = (json.dumps(numbers, allow_nan=False) + "\n").encode()
        with lock_folder(self._folder):
            for name, content in contents.items():
                files.write_file(self._folder / name, content)

    def _print(self, found: _Found, *, judged: bool, proven: bool) -> None:
        from statemix_lab.inspection import layer_text as text

        console = Console(highlight=False, markup=False)
        console.soft_wrap = not console.is_terminal
        table = text.table(found.layers, found.sharpened, found.joined)
        if table.lines:
            title = f"{self.folder}, weights {self.weights}"
            console.print(table.as_rich(title) if console.is_terminal else table.as_text())
            console.print(text.legend(table))
        for sentence in text.without(found.layers):
            console.print(sentence)
        if found.learned:
            for sentence in text.sentences(found.learned, judged=judged, proven=proven):
                console.print(sentence)
        if found.joined is not None:
            console.print(text.together(found.joined))
        console.print(f"written: {self._folder}")


def _sharpened(
    model: "ReadoutModel",
    config: "RunConfig",
    task: "Task",
    tokens: "Tensor",
    lengths: list[int],
    units: Sequence[int],
) -> "list[Sharpening]":
    """Return the gates before and after sharpening; empty if nothing sharpens them."""
    from statemix.proofs import can_harden, harden
    from statemix_lab.inspection.layer_numbers import sharpening, softened

    soft = softened(model, config, task)
    if soft is not None:
        return sharpening(soft, model, tokens, lengths, units=units)
    if can_harden(model):
        return sharpening(model, harden(model), tokens, lengths, units=units)
    return []


def _cut(examples: "Examples", most: int) -> tuple[Any, list[int]]:
    """Return the first tokens of examples, and how many each has."""
    longest = examples.tokens.shape[1]
    lengths = [longest] * len(examples.tokens)
    if examples.lengths is not None:
        lengths = examples.lengths.tolist()
    lengths = [min(length, most) for length in lengths]
    return examples.tokens[:, : max(lengths)], lengths


def _lines(found: _Found) -> list[dict[str, Any]]:
    """Return the table as JSON data."""
    names = ("layer", "module", "kind", "unit", "units", "size", "summary")
    sharpened = {one["layer"]: one for one in found.sharpened}
    lines = []
    for one in found.layers:
        line: dict[str, Any] = {name: one[name] for name in names}  # type: ignore[literal-required]
        gates = sharpened.get(one["layer"])
        line["sharpening"] = (
            None
            if gates is None
            else {
                moment: {name: gates[moment][name] for name in ("temperature", "gate_entropy")}
                for moment in ("before", "after")
            }
        )
        line["joint"] = found.joined
        lines.append(line)
    return lines
