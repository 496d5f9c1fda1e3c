"""Compare several ways to compute one thing: interleaved, in one process, correct ones only."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Literal, NamedTuple

import numpy as np

from statemix.bench import memory
from statemix.ops import BackendUnavailableError

# Slow providers get fewer rounds, but a median needs at least this many.
_FEWEST_ROUNDS = 3
# Estimates of memory are estimates, and others use the machine too.
_USABLE_SHARE = 0.6
# A heap that keeps what is freed may grow to this many times what is held at once.
_FRAGMENTATION = 2.5


class Spread(NamedTuple):
    """The 20th, 50th and 80th percentile of a sample."""

    p20: float
    p50: float
    p80: float


@dataclass(frozen=True)
class Provider:
    """One way to compute a case.

    Args:
        name: how rows and tables call it.
        prepare: makes the inputs and returns the function to time. Called once, and only if there
            is memory for it; everything it holds is released when the case is done.
        error: relative error of what a run returned; None if there is nothing to check.
        required_bytes: estimate of the memory it takes, inputs of its own included.
        note: what a reader should know of its inputs, such as their memory order.
    """

    name: str
    prepare: Callable[[], Callable[[], Any]]
    error: Callable[[Any], float] | None = None
    required_bytes: int = 0
    note: str = ""


@dataclass(frozen=True)
class Measurement:
    """What one provider did in one case.

    Args:
        provider: its name.
        note: the provider's note.
        status: "measured"; "wrong" if its result was not correct; "skipped" if it
            cannot run here or memory is short.
        reason: why there is no time.
        relative_error: of its first result.
        first_call_s: the first call, with all that happens only once, such as compilation.
        memory_bytes: peak of what one call allocates, above its inputs.
        memory_reused: whether its calls found the memory that earlier ones had freed. Large blocks
            of a provider too large for that are mapped afresh in every call.
        rounds: how many calls the time was taken from.
        time_s: of one call.
        ratios: name of another provider -> this provider's time over that one's, by round.
    """

    provider: str
    note: str
    status: Literal["measured", "wrong", "skipped"]
    reason: str = ""
    relative_error: float | None = None
    first_call_s: float | None = None
    memory_bytes: int | None = None
    memory_reused: bool | None = None
    rounds: int = 0
    time_s: Spread | None = None
    ratios: Mapping[str, Spread] = field(default_factory=dict)


@dataclass(frozen=True)
class _Ready:
    """A provider that may be timed: its call, and the setting of the allocator for it."""

    call: Callable[[], Any]
    set_allocator: Callable[[], bool]


def measure(
    providers: Sequence[Provider],
    *,
    relative_to: Sequence[str],
    rounds: int,
    budget_s: float,
    tolerance: float,
    seed: int,
    on_step: Callable[[str], None],
    clock: Callable[[], float] = time.perf_counter,
) -> list[Measurement]:
    """Check every provider, then time those that are right in rounds of random order.

    Machines are loud: a time means little by itself, and the ratio of two times of one round
    means more. So each round calls every provider once, and ratios are taken round by round.
    Freed memory is reused where it can be, which changes the allocator of this process: measure
    in a process that does nothing else.

    Args:
        providers: what to compare, with distinct names.
        relative_to: names of the providers whose times divide those of the others.
        rounds: calls per provider. A provider that cannot make them within ``budget_s`` makes
            fewer, at least three, spread evenly over the rounds.
        budget_s: time for the calls of one provider, estimated from the calls before.
        tolerance: largest relative error of a correct result.
        seed: of the order within each round.
        on_step: told what happens next, for a progress display.
        clock: seconds, for tests.

    Returns:
        One measurement per provider, in the order given.
    """
    outcomes: dict[str, Measurement] = {}
    ready: dict[str, _Ready] = {}
    for provider in providers:
        on_step(f"checking {provider.name}")
        outcome, admitted = _admit(provider, tolerance, clock)
        outcomes[provider.name] = outcome
        if admitted is not None:
            ready[provider.name] = admitted

    on_step("warming up")
    shares = {}
    for name, one in ready.items():
        # The heap may grow in either call, which later ones are spared.
        call_s = min(_time(one, clock), outcomes[name].first_call_s or math.inf)
        shares[name] = _share(call_s, rounds=rounds, budget_s=budget_s)
    times = _interleave(ready, shares, rounds=rounds, seed=seed, clock=clock, on_step=on_step)
    return [
        _with_times(outcomes[provider.name], times, relative_to)
        if provider.name in times
        else outcomes[provider.name]
        for provider in providers
    ]


def _admit(
    provider: Provider, tolerance: float, clock: Callable[[], float]
) -> tuple[Measurement, _Ready | None]:
    """Prepare one provider, check its result and count its memory, unless it may not run."""
    memory.release()
    free = int(_USABLE_SHARE * memory.available_bytes())
    if provider.required_bytes > free:
        reason = f"needs about {provider.required_bytes / 1e9:.1f} GB, {free / 1e9:.1f} GB are free"
        return Measurement(provider.name, provider.note, "skipped", reason), None

    fits_twice = provider.required_bytes * _FRAGMENTATION <= free
    set_allocator = memory.reuse_freed_memory if fits_twice else memory.map_large_blocks
    memory_reused = set_allocator() and fits_twice
    call = provider.prepare()
    start = clock()
    try:
        result = call()
    except BackendUnavailableError as error:
        return Measurement(provider.name, provider.note, "skipped", str(error)), None
    first_call_s = clock() - start
    relative_error = None if provider.error is None else provider.error(result)
    del result
    # A NaN compares false with everything, so that it must not pass.
    if relative_error is not None and not relative_error <= tolerance:
        reason = f"relative error {relative_error:.1e} exceeds {tolerance:.0e}"
        return Measurement(provider.name, provider.note, "wrong", reason, relative_error), None
    outcome = Measurement(
        provider.name,
        provider.note,
        "measured",
        relative_error=relative_error,
        first_call_s=first_call_s,
        memory_bytes=memory.peak_bytes(call),
        memory_reused=memory_reused,
    )
    return outcome, _Ready(call, set_allocator)


def _time(ready: _Ready, clock: Callable[[], float]) -> float:
    ready.set_allocator()
    start = clock()
    result = ready.call()
    elapsed = clock() - start
    # Freeing the result is not part of the call.
    del result
    return elapsed


def _share(call_s: float, *, rounds: int, budget_s: float) -> int:
    """How many of the rounds a provider takes part in."""
    affordable = rounds if call_s * rounds <= budget_s else int(budget_s / call_s)
    return min(rounds, max(_FEWEST_ROUNDS, affordable))


def _interleave(
    ready: Mapping[str, _Ready],
    shares: Mapping[str, int],
    *,
    rounds: int,
    seed: int,
    clock: Callable[[], float],
    on_step: Callable[[str], None],
) -> dict[str, dict[int, float]]:
    """Time per provider and round.

    A provider with a share of n takes part in the first n rounds of a fixed order that any prefix
    spreads evenly (multiples of the golden ratio). So the rounds of a slow provider are a subset
    of those of a fast one, and every round of it gives ratios.
    """
    spread_out = sorted(range(rounds), key=lambda r: r * 0.6180339887 % 1)
    random = Random(seed)
    times: dict[str, dict[int, float]] = {name: {} for name in ready}
    for r in range(rounds):
        present = [name for name in ready if r in spread_out[: shares[name]]]
        random.shuffle(present)
        on_step(f"round {r + 1} of {rounds}")
        for name in present:
            times[name][r] = _time(ready[name], clock)
    return times


def _with_times(
    outcome: Measurement, times: Mapping[str, Mapping[int, float]], relative_to: Sequence[str]
) -> Measurement:
    own = times[outcome.provider]
    ratios = {}
    for name in relative_to:
        shared = sorted(own.keys() & times.get(name, {}).keys())
        if shared and name != outcome.provider:
            ratios[name] = spread([own[r] / times[name][r] for r in shared])
    return replace(outcome, rounds=len(own), time_s=spread(list(own.values())), ratios=ratios)


def spread(sample: Sequence[float]) -> Spread:
    """The percentiles that rows carry."""
    return Spread(*(float(p) for p in np.percentile(sample, [20, 50, 80])))
