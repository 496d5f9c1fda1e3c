"""Read the rows of ``statemix bench layers``: one point of a throughput curve each."""

import json
import math
import reprlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from statemix.bench.harness import Spread
from statemix.errors import RequestError
from statemix.report.numbers import counted

# How implementations of the recurrences are called, by backend.
_NAMES = {
    "loop": "sequential",
    "associative": "parallel",
    "cpu": "CPU kernels",
    "triton": "Triton kernels",
}
# Options that decide where a layer belongs.
_SIZES = ("num_blocks", "block_size", "num_channels", "order")


class Setting(NamedTuple):
    """What the points of one figure share.

    Attributes:
        device: name of the product.
        threads: threads of the process; None on a GPU.
        dtype: dtype of parameters and activations.
        graphs: whether calls were replayed as CUDA graphs.
    """

    device: str
    threads: int | None
    dtype: str
    graphs: bool

    @property
    def title(self) -> str:
        """The setting in words."""
        threads = [] if self.threads is None else [counted(self.threads, "thread")]
        return ", ".join([self.device, *threads, self.dtype, *["CUDA graphs"] * self.graphs])


@dataclass(frozen=True)
class Point:
    """The speed of one layer at one size.

    Attributes:
        setting: device, threads and dtype.
        provider: name and options of the layer as users write them, marked if it was compiled.
        family: registered name of the layer.
        label: name of the layer in tables.
        options: options of the layer.
        implementation: how its recurrence is computed, such as "parallel"; empty without a choice.
        num_parameters: parameters of the layer.
        hidden_size: width of the layer.
        batch_size: sequences B of a call.
        length: tokens T of a sequence.
        speed: tokens per second, forward and backward; None if it has no time.
        ratio: its time over that of an LSTM of the same width; None for the LSTM itself.
        missing: why it has no time.
        commit: commit of the code that was measured, marked "+" if files had changed; "unknown" if
            it was no checkout.
    """

    setting: Setting
    provider: str
    family: str
    label: str
    options: Mapping[str, Any]
    implementation: str
    num_parameters: int
    hidden_size: int
    batch_size: int
    length: int
    speed: Spread | None
    ratio: Spread | None
    missing: str
    commit: str


def read(paths: Iterable[Path]) -> list[Point]:
    """Return the points of all files; of repeated ones the last with a time, else the last.

    Rows of other benchmarks are skipped.

    Args:
        paths: files with a JSON object in every line.

    Raises:
        RequestError: if a file cannot be read, or a line is not a row of a benchmark.
    """
    found: dict[tuple[object, ...], Point] = {}
    for path in paths:
        for number, line in enumerate(_lines(path), start=1):
            point = _point(f"{path}:{number}", line)
            if point is None:
                continue
            sizes = point.hidden_size, point.batch_size, point.length
            key = (point.setting, point.provider, *sizes)
            if point.speed is not None or key not in found or found[key].speed is None:
                found[key] = point
    return list(found.values())


def _lines(path: Path) -> list[str]:
    try:
        # Only this character ends a row.
        return path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        raise RequestError(f"files must be readable, got {str(path)!r} ({reason})") from error


def _point(place: str, line: str) -> Point | None:
    """Return the point of a line, or None if it is a row of another benchmark, or of a part."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{place} must be a row of a benchmark, got {error}") from error
    if not isinstance(row, dict):
        raise RequestError(f"{place} must be a row of a benchmark, got {reprlib.repr(row)}")
    if row.get("benchmark") != "layers" or row.get("projections") is True:
        return None
    fields = _Fields(place, row)
    case, layer = fields.inside("case"), fields.inside("layer")
    batch_size, length = case.size("batch_size"), case.size("length")
    tokens = batch_size * length
    time_s = fields.spread("time_s")
    for name in layer.row.keys() & _SIZES:
        layer.size(name)
    backend = "" if layer.row.get("backend") is None else layer.text("backend")
    compiled = row.get("compiled", False) is True
    return Point(
        setting=_setting(fields),
        provider=fields.text("provider"),
        family=layer.text("name"),
        label=fields.text("label"),
        options=layer.row,
        implementation="autotuned" if compiled else _NAMES.get(backend, backend),
        num_parameters=fields.size("num_parameters"),
        hidden_size=case.size("hidden_size"),
        batch_size=batch_size,
        length=length,
        # The slowest call is the lowest speed.
        speed=time_s and Spread(*(tokens / one for one in reversed(time_s))),
        ratio=fields.inside("ratios").spread("lstm"),
        missing="" if time_s else f"{fields.text('status')}: {fields.text('reason')}",
        commit=_commit(fields),
    )


def _commit(fields: "_Fields") -> str:
    # A package that no checkout tracks has none.
    if fields.row.get("commit", "") is None:
        return "unknown"
    return fields.text("commit")[:7] + "+" * (fields.row.get("tree_clean") is False)


def _setting(fields: "_Fields") -> Setting:
    # Rows from before other devices were measured do not say which one it was.
    device = fields.row.get("device", "cpu")
    on_cpu = device == "cpu"
    return Setting(
        fields.text("cpu") if on_cpu else fields.text("device"),
        fields.size("threads") if on_cpu else None,
        fields.text("dtype"),
        fields.row.get("graphs", False) is True,
    )


@dataclass(frozen=True)
class _Fields:
    """Fields of a row, checked as they are read.

    Attributes:
        place: file and line, for messages.
        row: the fields by name.
    """

    place: str
    row: Mapping[str, Any]

    def text(self, name: str) -> str:
        value = self.row.get(name)
        if not isinstance(value, str):
            raise self._refusal(name, "a text")
        return value

    def size(self, name: str) -> int:
        value: Any = self.row.get(name)
        if type(value) is not int or value < 1:
            raise self._refusal(name, "a whole number of at least 1")
        return int(value)

    def positive(self, name: str) -> float:
        value: Any = self.row.get(name)
        if type(value) not in (int, float) or not 0 < value < math.inf:
            raise self._refusal(name, "a positive number")
        return float(value)

    def inside(self, name: str) -> "_Fields":
        value = self.row.get(name)
        if not isinstance(value, dict):
            raise self._refusal(name, "an object")
        return _Fields(f"{self.place}: {name}", value)

    def spread(self, name: str) -> Spread | None:
        """Return percentiles; None if they are null or absent."""
        if self.row.get(name) is None:
            return None
        fields = self.inside(name)
        return Spread(*map(fields.positive, Spread._fields))

    def _refusal(self, name: str, kind: str) -> RequestError:
        shown = reprlib.repr(self.row[name]) if name in self.row else "nothing"
        return RequestError(f"{self.place}: {name} must be {kind}, got {shown}")
