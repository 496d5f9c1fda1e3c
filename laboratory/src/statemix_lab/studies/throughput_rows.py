"""The rows of ``statemix bench layers``: one point of a throughput curve each."""

import json
import reprlib
from collections.abc import Iterable
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
from statemix_lab.bench.harness import Spread
from statemix_lab.studies.result_text import commit_text, counted

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
    """Return the points of JSON-lines files; of repeated ones the last with a time, else the last.

    Rows of other benchmarks are skipped.
    """
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
