"""Time several implementations of one computation in interleaved rounds of one process."""

import json
import math
import os
import shlex
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from statemix import files, provenance
from statemix.memory import is_shortage
from statemix.ops import BackendUnavailableError
from statemix_lab.bench.timed_devices import Cpu, DeviceName

TOO_LATE = "the time limit had passed before it was compiled and checked"
"""Reason of a provider that was not checked in time."""

# Slow providers run fewer rounds, but a median needs at least this many.
_FEWEST_ROUNDS = 3


class Spread(NamedTuple):
    """The 20th, 50th and 80th percentile of a sample."""

    p20: float
    p50: float
    p80: float


@dataclass(frozen=True)
class Provider:
    """One way to compute a case: ``prepare`` makes the call to time, ``error`` checks a result."""

    name: str
    prepare: Callable[[], Callable[[], Any]]
    error: Callable[[Any], float] | None = None
    note: str = ""


@dataclass(frozen=True)
class Measurement:
    """The outcome of one provider in one case; ratios are its time over that of another one.

    It is "skipped" if it cannot run here or memory is short. Memory is the peak of a call.
    """

    provider: str
    note: str
    status: Literal["measured", "wrong", "skipped", "failed"]
    reason: str = ""
    relative_error: float | None = None
    first_call_s: float | None = None
    memory_bytes: int | None = None
    memory_reused: bool | None = None
    rounds: int = 0
    time_s: Spread | None = None
    ratios: Mapping[str, Spread] = field(default_factory=dict)

    def to_row(self) -> dict[str, Any]:
        """Return the measurement as plain data for a row of results."""
        error = self.relative_error
        return asdict(self) | {
            # JSON has no NaN; the reason reports it.
            "relative_error": error if error is not None and math.isfinite(error) else None,
            "time_s": self.time_s and self.time_s._asdict(),
            "ratios": {name: ratio._asdict() for name, ratio in self.ratios.items()},
        }


def measure(
    providers: Sequence[Provider],
    *,
    relative_to: Sequence[str],
    rounds: int,
    budget_s: float,
    tolerance: float,
    seed: int,
    on_step: Callable[[str], None] | None = None,
    device: Cpu | None = None,
    ready_by_s: float = math.inf,
    clock: Callable[[], float] = time.perf_counter,
) -> list[Measurement]:
    """Check every provider, then time the correct ones in rounds of random order.

    A provider that raises an error has no time, and the others are measured. Machines are noisy:
    the ratio of two times from one round means more than either time alone. Each round therefore
    calls every provider once, and ratios are computed round by round. A provider too slow for
    ``budget_s`` makes fewer calls, at least three, spread evenly over the rounds. Freed memory is
    reused if possible, which changes the allocator of this process.
    """
    device, on_step = device or Cpu(), on_step or (lambda _: None)
    with device.limited():
        outcomes: dict[str, Measurement] = {}
        ready: dict[str, Callable[[], Any]] = {}
        memory_reused = device.reuse_freed_memory()
        for provider in providers:
            name = provider.name
            if time.monotonic() >= ready_by_s:
                outcomes[name] = Measurement(name, provider.note, "failed", TOO_LATE)
                continue
            on_step(f"checking {name}")
            outcomes[name], admitted = _admit(provider, device, tolerance, clock)
            if admitted is not None:
                ready[name] = admitted

        def timed(name: str) -> float | None:
            try:
                start = clock()
                result = ready[name]()
                elapsed = clock() - start
                # Freeing the result is not timed.
                del result
                return elapsed
            except Exception as error:  # noqa: BLE001 - the others are timed
                outcomes[name] = _without_time(name, outcomes[name].note, error)
                del ready[name]
                return None

        on_step("warming up")
        shares = {}
        for name in tuple(ready):
            warm_s = timed(name)
            if warm_s is not None:
                # Growing the heap may slow down either call, but not later ones.
                call_s = min(warm_s, outcomes[name].first_call_s or math.inf)
                affordable = rounds if call_s * rounds <= budget_s else int(budget_s / call_s)
                shares[name] = min(rounds, max(_FEWEST_ROUNDS, affordable))
        times = _interleave(timed, shares, rounds=rounds, seed=seed, on_step=on_step)
        return [
            replace(_with_times(outcome, times, relative_to), memory_reused=memory_reused)
            if name in ready
            else outcome
            for name, outcome in outcomes.items()
        ]


def _without_time(name: str, note: str, error: Exception) -> Measurement:
    """Return the outcome of a provider that raised an error."""
    if isinstance(error, BackendUnavailableError):
        return Measurement(name, note, "skipped", str(error))
    if is_shortage(error):
        return Measurement(name, note, "skipped", f"out of memory: {error}")
    traceback.print_exception(error)
    return Measurement(name, note, "failed", f"{type(error).__name__}: {error}")


def _admit(
    provider: Provider, device: Cpu, tolerance: float, clock: Callable[[], float]
) -> tuple[Measurement, Callable[[], Any] | None]:
    """Prepare a provider, check it and measure its memory; also return a call to time, if any."""
    device.release()
    try:
        plain = provider.prepare()
        call = device.waiting(plain)
        start = clock()
        result = call()
        first_call_s = clock() - start
        error = None if provider.error is None else provider.error(result)
        del result
        outcome = Measurement(provider.name, provider.note, "measured", relative_error=error)
        # Compare this way round so that a NaN fails.
        if error is not None and not error <= tolerance:
            reason = f"relative error {error:.1e} exceeds {tolerance:.0e}"
            return replace(outcome, status="wrong", reason=reason), None
        # A replay of a graph allocates nothing.
        memory_bytes = device.peak_bytes(plain)
    except Exception as error:  # noqa: BLE001 - the other providers are measured
        return _without_time(provider.name, provider.note, error), None
    return replace(outcome, first_call_s=first_call_s, memory_bytes=memory_bytes), call


def _interleave(
    timed: Callable[[str], float | None],
    shares: Mapping[str, int],
    *,
    rounds: int,
    seed: int,
    on_step: Callable[[str], None],
) -> dict[str, dict[int, float]]:
    """Return the time of every provider in each of its rounds.

    A provider with a share of n runs in the first n rounds of a fixed order, in which any prefix is
    spread evenly (multiples of the golden ratio). The rounds of a slow provider are thus a subset
    of those of a fast one, so each of them gives ratios.
    """
    spread_out = sorted(range(rounds), key=lambda r: r * 0.6180339887 % 1)
    of_provider = {name: set(spread_out[:share]) for name, share in shares.items()}
    random = Random(seed)
    times: dict[str, dict[int, float]] = {name: {} for name in shares}
    for r in range(rounds):
        present = [name for name in times if r in of_provider[name]]
        random.shuffle(present)
        on_step(f"round {r + 1} of {rounds}")
        for name in present:
            elapsed_s = timed(name)
            if elapsed_s is None:
                del times[name]
            else:
                times[name][r] = elapsed_s
    return times


def _with_times(
    outcome: Measurement, times: Mapping[str, Mapping[int, float]], relative_to: Sequence[str]
) -> Measurement:
    own = times[outcome.provider]
    ratios = {}
    for name in relative_to:
        shared = sorted(own.keys() & times.get(name, {}).keys())
        if shared and name != outcome.provider:
            ratios[name] = _spread([own[r] / times[name][r] for r in shared])
    return replace(outcome, rounds=len(own), time_s=_spread(list(own.values())), ratios=ratios)


def _spread(sample: Sequence[float]) -> Spread:
    return Spread(*(float(p) for p in np.percentile(sample, [20, 50, 80])))


def unavailable_if_it_fails(name: str, call: Callable[[], Any]) -> Any:
    """Call what flash-linear-attention runs; its failure is a BackendUnavailableError."""
    try:
        return call()
    except Exception as error:
        raise BackendUnavailableError(
            f"flash-linear-attention cannot run {name} here: {error}"
        ) from error


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """Return the largest error relative to the largest entry."""
    return float((actual.double() - expected).abs().max() / expected.abs().max())


COPY = "copy"
"""Name of the provider that copies."""

# The copy reuses buffers of at most this size until it has moved its bytes. They are much larger
# than the caches, so it costs as much as one large copy.
_BUFFER_BYTES = 2**28


def timed_row(
    benchmark: str,
    case: Any,
    measurement: Measurement,
    dtype: torch.dtype,
    moved: int | None,
    copied: int,
) -> dict[str, Any]:
    """Return what all stored rows have in common, without their provenance."""
    ratio, roofline = measurement.ratios.get(COPY), None
    if moved is not None and ratio is not None:
        # The slowest copy gives the largest fraction.
        share = moved / copied
        roofline = Spread(share / ratio.p80, share / ratio.p50, share / ratio.p20)._asdict()
    return {
        "benchmark": benchmark,
        "case": asdict(case),
        "dtype": str(dtype).removeprefix("torch."),
        "moved_bytes": moved,
        "roofline": roofline,
        **measurement.to_row(),
    }


def copy_provider(moved_bytes: int, device: DeviceName, times: int = 1) -> Provider:
    """Return a provider that copies ``moved_bytes / 2`` bytes between two reused buffers."""

    def prepare() -> Callable[[], None]:
        # torch copies floats faster than bytes.
        total = max(1, moved_bytes // 2 // torch.float32.itemsize)
        size = min(total, _BUFFER_BYTES // torch.float32.itemsize)
        source = torch.ones(size, device=device)
        target = torch.empty_like(source)
        repeats, rest = divmod(total, size)

        def copy() -> None:
            for _ in range(times):
                for _ in range(repeats):
                    target.copy_(source)
                if rest:
                    target[:rest].copy_(source[:rest])

        return copy

    return Provider(COPY, prepare, note="reads and writes as many bytes as the computation must")


def describe_process(device: Cpu | None = None) -> dict[str, Any]:
    """Describe this process: provenance, command, device, threads and the time of this call."""
    device = device or Cpu()
    return {
        **provenance.describe(),
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "device": device.model,
        "graphs": device.graphs,
        "threads": torch.get_num_threads(),
        "omp_proc_bind": os.environ.get("OMP_PROC_BIND"),
        "started_utc": _now(),
    }


def append_rows(path: Path, rows: Iterable[Mapping[str, Any]], process: Mapping[str, Any]) -> None:
    """Append rows, each with the current time and ``process``; never overwrite any."""
    context = {"measured_utc": _now(), **process}
    text = "".join(json.dumps({**row, **context}, allow_nan=False) + "\n" for row in rows)
    files.append(path, text)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
