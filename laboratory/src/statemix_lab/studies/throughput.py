"""Figure 3 of Dubinin et al. from the rows of ``statemix bench layers``.

The text of the paper does not state every axis. We draw comparison A against the block size, and B
and C against the length and against the batch size.
"""

import json
import re
import reprlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NamedTuple, Self

from pydantic import (
    AliasPath,
    BaseModel,
    ConfigDict,
    Field,
    PositiveFloat,
    ValidationError,
    model_validator,
)

from statemix.errors import RequestError
from statemix_lab.bench.compared_layers import display_name
from statemix_lab.bench.harness import Spread
from statemix_lab.studies.figure import Panel, curves
from statemix_lab.studies.result_text import Line, Table, commit_text, counted, rate_text

LEGEND = """\
tokens/s: forward and backward of one layer, the median and the 20th to the 80th percentile over
rounds. x time of LSTM: the median over rounds of its time over that of an LSTM of the same width.
sequential, parallel: a loop over time, and the paper's scan; autotuned: the whole layer with the
paper's scan, compiled with max-autotune."""

_Count = Annotated[int, Field(gt=0, lt=2**63)]
# How implementations of the recurrences are called, by backend.
_NAMES = {"loop": "sequential", "associative": "parallel"}
_NAMES |= {"cpu": "CPU kernels", "triton": "Triton kernels"}


class Setting(NamedTuple):
    """What the points of one figure share; threads are None on a GPU."""

    device: str
    threads: int | None
    dtype: str
    graphs: bool

    @property
    def title(self) -> str:
        """The setting in words."""
        threads = [] if self.threads is None else [counted(self.threads, "thread")]
        return ", ".join([self.device, *threads, self.dtype, *["CUDA graphs"] * self.graphs])


class _Stored(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False)


class _Percentiles(_Stored):
    p20: PositiveFloat
    p50: PositiveFloat
    p80: PositiveFloat


class _TimedLayer(_Stored, extra="allow"):
    """A layer with its options; those that decide where it belongs are checked."""

    name: str
    backend: str | None = None
    num_blocks: _Count | None = None
    block_size: _Count | None = None
    num_channels: _Count | None = None
    order: _Count | None = None


class Point(_Stored):
    """The speed of one layer at one size: a row of the benchmark."""

    provider: str
    """Name and options of the layer as users write them, marked if it was compiled."""
    label: str
    layer: _TimedLayer
    num_parameters: _Count
    hidden_size: _Count = Field(validation_alias=AliasPath("case", "hidden_size"))
    batch_size: _Count = Field(validation_alias=AliasPath("case", "batch_size"))
    length: _Count = Field(validation_alias=AliasPath("case", "length"))
    time_s: _Percentiles | None
    ratio: _Percentiles | None = Field(None, validation_alias=AliasPath("ratios", "lstm"))
    """Its time over that of an LSTM of the same width; None for the LSTM itself."""
    status: str
    reason: str
    commit: str | None
    tree_clean: bool | None = None
    dtype: str
    cpu: str
    threads: _Count | None = None
    # Rows from before other devices were measured do not say which one it was.
    device: str = "cpu"
    compiled: bool = False
    graphs: bool = False

    @model_validator(mode="after")
    def _check_threads(self) -> Self:
        if self.device == "cpu" and self.threads is None:
            raise ValueError("threads must be given on a CPU")
        return self

    @property
    def setting(self) -> Setting:
        """Device, threads and dtype."""
        on_cpu = self.device == "cpu"
        place = (self.cpu, self.threads) if on_cpu else (self.device, None)
        return Setting(*place, self.dtype, self.graphs)

    @property
    def implementation(self) -> str:
        """How its recurrence is computed, such as "parallel"; empty without a choice."""
        backend = self.layer.backend or ""
        return "autotuned" if self.compiled else _NAMES.get(backend, backend)

    @property
    def speed(self) -> Spread | None:
        """Tokens per second, forward and backward; None if it has no time."""
        if self.time_s is None:
            return None
        tokens = self.batch_size * self.length
        # The slowest call is the lowest speed.
        times = (self.time_s.p80, self.time_s.p50, self.time_s.p20)
        return Spread(*(tokens / time_s for time_s in times))

    @property
    def missing(self) -> str:
        """Why it has no time."""
        return "" if self.time_s else f"{self.status}: {self.reason}"

    @property
    def version(self) -> str:
        """The commit that was measured; "unknown" if it was no checkout."""
        return commit_text({"commit": self.commit, "tree_clean": self.tree_clean}) or "unknown"


def read(paths: Iterable[Path]) -> list[Point]:
    """Return points of JSON-lines files; the last row with a time counts, or else the last row."""
    points: dict[tuple[object, ...], Point] = {}
    for path in paths:
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not text"
            raise RequestError(f"files must be readable, got {str(path)!r} ({reason})") from error
        # Only this character ends a row.
        for number, line in enumerate(text.removesuffix("\n").split("\n"), start=1):
            if (point := _point(f"{path}:{number}", line)) is not None:
                sizes = point.hidden_size, point.batch_size, point.length
                key = (point.setting, point.provider, *sizes)
                if point.speed is not None or key not in points or points[key].speed is None:
                    points[key] = point
    return list(points.values())


def _point(place: str, line: str) -> Point | None:
    """Return the point of a line, or None if it is a row of another benchmark, or of a part."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        row = str(error)
    if not isinstance(row, dict):
        raise RequestError(f"{place} must be a row of a benchmark, got {reprlib.repr(row)}")
    if row.get("benchmark") != "layers" or row.get("projections") is True:
        return None
    try:
        return Point(**row)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name, condition = ".".join(map(str, first["loc"])), first["msg"].partition(", ")[-1]
        condition = condition or first["msg"].replace("Input should", "must", 1)
        got = "nothing" if first["type"] == "missing" else reprlib.repr(first["input"])
        raise RequestError(f"{place}: {name} {condition}, got {got}".replace(":  ", ": ")) from None


# Dashes by implementation; our kernels, and layers without a choice, have solid lines.
_DASHES = {"sequential": (1, 1.4), "parallel": (4, 1.6), "autotuned": (6, 1.5, 1.2, 1.5)}
_SIZES: Mapping[str, Callable[[Point], int]] = {
    "m": lambda point: point.layer.block_size or 1,
    "T": lambda point: point.length,
    "B": lambda point: point.batch_size,
    "width": lambda point: point.hidden_size,
}


class _Axis(NamedTuple):
    """What varies along a panel: a label that ends with the symbol of a size, or an option."""

    label: str
    shared: tuple[str, ...]
    option: str = ""

    def place(self, point: Point) -> int:
        return _SIZES[self.label.split()[-1]](point)


class _Comparison(NamedTuple):
    """A group of panels: its letter in the paper, what its layers have in common, and its axes."""

    letter: str
    title: str
    holds: Callable[[Point], bool]
    axes: Sequence[_Axis]


@dataclass(frozen=True)
class SpeedPanel:
    """One pair of axes; a line maps its name in the legend to points by their places, in order."""

    letter: str
    title: str
    label: str
    lines: Mapping[str, Mapping[int, Point]]

    @property
    def points(self) -> list[Point]:
        """All points."""
        return [point for line in self.lines.values() for point in line.values()]

    def drawn(self) -> Panel:
        """Return the panel of the figure: medians, and the 20th to the 80th percentile."""
        points = [
            (name, point.layer.name, quantile, float(x), speed)
            for name, line in self.lines.items()
            for x, point in line.items()
            for quantile, speed in (point.speed._asdict().items() if point.speed else ())
        ]
        dashes = {
            name: _DASHES.get(point.implementation, "")
            for name, line in self.lines.items()
            for point in line.values()
        }
        return Panel(self.title, self.label, curves(points), rates=True, dashes=dashes)

    def table(self) -> Table:
        """Lay out the points, a line for each."""
        symbol = self.label.split()[-1]
        head = ("layer", "parameters", symbol, "tokens/s", "p20 - p80", "x time of LSTM")
        lines = [
            Line((name, f"{point.num_parameters:,}", f"{x:,}", *_speed_texts(point)))
            for name, line in self.lines.items()
            for x, point in line.items()
        ]
        return Table(head, tuple(lines))


def _speed_texts(point: Point) -> tuple[str, ...]:
    if point.speed is None:
        return "–", "", point.missing
    low, median, high = map(rate_text, point.speed)
    return median, f"{low} - {high}", "" if point.ratio is None else f"{point.ratio.p50:.3g}"


def speed_panels(points: Sequence[Point]) -> tuple[list[SpeedPanel], list[str]]:
    """Return panels of the commonest sizes of one setting, and a line for each that is missing."""
    panels, missing = [], []
    for comparison in _COMPARISONS:
        belonging = [point for point in points if comparison.holds(point)]
        for axis in comparison.axes:
            title = f"({comparison.letter}) {comparison.title}"
            sizes, group = _commonest(axis, belonging)
            if _places(axis, group) < 2:
                missing.append(
                    f"{title}, against {axis.label}: fewer than two places were measured"
                )
                continue
            shared = ", ".join(
                f"{name} = {size:,}" for name, size in zip(axis.shared, sizes, strict=True)
            )
            lines = _lines_of(axis, group)
            panels.append(SpeedPanel(comparison.letter, f"{title}\n{shared}", axis.label, lines))
    return panels, missing


def _places(axis: _Axis, points: Sequence[Point]) -> int:
    """Return the number of places at which something was timed."""
    return len({axis.place(point) for point in points if point.speed is not None})


def _commonest(axis: _Axis, points: Sequence[Point]) -> tuple[tuple[int, ...], list[Point]]:
    """Return the shared sizes with the most places, then points, and the points that have them."""
    groups: dict[tuple[int, ...], list[Point]] = defaultdict(list)
    for point in points:
        groups[tuple(_SIZES[name](point) for name in axis.shared)].append(point)
    return max(
        groups.items(),
        key=lambda item: (_places(axis, item[1]), len(item[1]), item[0]),
        default=((), []),
    )


def _lines_of(axis: _Axis, points: Sequence[Point]) -> dict[str, dict[int, Point]]:
    groups: dict[tuple[str, int], list[Point]] = defaultdict(list)
    for point in sorted(points, key=_order):
        # The layer and its options without the one that varies.
        varying = rf" {axis.option}=\S+" if axis.option else "$"
        groups[re.sub(varying, "", point.provider), point.hidden_size].append(point)
    names = {}
    for key, (first, *_) in groups.items():
        label = display_name(first.layer.name) if axis.option else first.label
        names[key] = ", ".join(filter(None, (label, first.implementation)))
    counts = Counter(names.values())
    return {
        # Layers that differ in other options only go by these.
        names[key] if counts[names[key]] == 1 else key[0]: {
            axis.place(point): point for point in sorted(group, key=axis.place)
        }
        for key, group in groups.items()
    }


def _order(point: Point) -> tuple[object, ...]:
    """Key of the order of lines: layers with a choice of implementations first, by size."""
    layer = point.layer
    chosen = "backend" in layer.model_fields_set
    return not chosen, layer.name, layer.block_size or layer.order or 0, point.implementation


def _is_wide(point: Point) -> bool:
    """Whether the layer and, of our recurrences, also the state have a hidden size of 768."""
    layer = point.layer
    units = layer.num_channels or layer.num_blocks or point.hidden_size
    return point.hidden_size == units * (layer.block_size or 1) == 768


_ALONG_SEQUENCES = (_Axis("length T", ("B",)), _Axis("batch size B", ("T",)))
_COMPARISONS = (
    _Comparison(
        "A",
        "BD-LRU of 128 blocks",
        lambda point: point.layer.name == "bd_lru" and point.layer.num_blocks == 128,
        (_Axis("block size m", ("T", "B", "width"), "block_size"),),
    ),
    _Comparison("B", "hidden size 768", _is_wide, _ALONG_SEQUENCES),
    _Comparison(
        "C",
        "about 33M parameters",
        # At most 5% more or less.
        lambda point: abs(point.num_parameters - 33_000_000) <= 33_000_000 // 20,
        _ALONG_SEQUENCES,
    ),
)


def caption(setting: Setting, points: Sequence[Point]) -> str:
    """Return the title of a figure: what was measured, where, and with which code."""
    versions = list(dict.fromkeys(point.version for point in points))
    commits = f"commit{'s' * (len(versions) > 1)} {', '.join(versions)}"
    return (
        "Training throughput of one layer, forward and backward (Figure 3 of Dubinin et al.)\n"
        f"{setting.title}, {commits}"
    )
