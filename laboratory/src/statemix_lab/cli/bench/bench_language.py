"""``statemix bench language``: language models side by side, in training and in decoding."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from rich.table import Table

from statemix.errors import RequestError
from statemix_lab.bench import harness
from statemix_lab.bench.harness import Measurement
from statemix_lab.cli.bench.bench_options import (
    Measured,
    Timed,
    open_console,
    provider_table,
    ratio_text,
    time_texts,
)

_REMARK = """\
On a CPU, times are processor seconds of one thread, which other programs hardly change.
Models of about {parameters} parameters, those of `statemix reproduce fig4` at the size.
training: a step on {batch} sequences of {length} tokens. decoding: one sequence, token by token,
with the cache; its context grows by 4 tokens with every call."""
_BASELINE = "Transformer"
# Parameters of a model, and sequences of a training step and their length.
_SIZES = {"laptop": ("1.56 million", 16, 128), "paper": ("140 million", 8, 2048)}


@dataclass(frozen=True, kw_only=True)
class LanguageModels(Measured):
    """Time language models of equal size: steps of training, and decoding behind a context.

    One process calls all models in rounds, each in random order. Times are medians over rounds, and
    ratios to the Transformer are medians of the ratios within a round. On a CPU, times are
    processor seconds of one thread. With bfloat16, float32 weights compute under autocast.
    """

    size: Literal["laptop", "paper"] = "laptop"
    """Size of the models: 1.56 million parameters, or 140 million."""

    threads: int | None = 1
    """Number of threads, which must be 1: seconds of several threads add up."""

    models: tuple[str, ...] = ()
    """Models, such as "BD-LRU m=4" (all if not given)."""

    contexts: tuple[int, ...] = (1_000, 8_000)
    """Tokens before those that are decoded."""

    memory_at: tuple[int, ...] = (1_000, 10_000, 100_000)
    """Numbers of decoded tokens at which the memory of the first model is measured, on a CPU alone;
    none to skip it. The model decodes token by token up to the last one."""

    def run(self) -> None:
        """Measure and print, case by case."""
        from statemix_lab.bench import language_timing
        from statemix_lab.bench.language_timing import LanguageCase
        from statemix_lab.studies.language.language_suites import timed_models

        device = self.place()
        known = timed_models(self.size)
        if self.threads != 1:
            raise RequestError(f"threads must be 1 with language models, got {self.threads}")
        if self.dtype == "float64":
            raise RequestError("dtype must be float32 or bfloat16 with language models")
        for name in self.models:
            if name not in known:
                raise RequestError(f"models must be among {list(known)}, got {name!r}")
        for option, numbers in (("contexts", self.contexts), ("memory_at", self.memory_at)):
            if any(number < 1 for number in numbers) or sorted(set(numbers)) != list(numbers):
                raise RequestError(f"{option} must be ascending and at least 1, got {numbers}")
        models = {name: known[name] for name in self.models or known}
        parameters, batch, length = _SIZES[self.size]
        cases = [LanguageCase("training", batch, length)]
        cases += [LanguageCase("decoding", 1, length) for length in self.contexts]
        self._measure_memory(models)
        llama = _BASELINE if _BASELINE in models else ""
        self.measure(
            cases,
            partial(
                language_timing.providers,
                models=models,
                llama=llama,
                device=self.device,
                dtype=self.torch_dtype,
            ),
            device=device,
            relative_to=(_BASELINE,),
            label=_label,
            row=partial(language_timing.row, models=models, dtype=self.torch_dtype),
            remark=_REMARK.format(parameters=parameters, batch=batch, length=length),
            block=_label,
            table=_table,
            clock=time.process_time if self.device == "cpu" else time.perf_counter,
        )

    def _measure_memory(self, models: Mapping[str, Mapping[str, Any]]) -> None:
        """Measure the memory of decoding before anything else uses this process."""
        from statemix_lab.bench.language_timing import decoding_memory

        if not self.memory_at or self.device != "cpu":
            return
        console = open_console(self.output)
        name, model = next(iter(models.items()))
        process = harness.describe_process()
        for used in decoding_memory(model, self.memory_at):
            console.print(
                f"{name} after {used['tokens']:,} tokens: cache {used['cache_bytes']:,} bytes, "
                f"process {used['resident_bytes'] / 2**20:,.1f} MiB"
            )
            if self.output is not None:
                row = {"benchmark": "language-memory", "provider": name, "model": model, **used}
                harness.append_rows(self.output, [row], process)


def _label(case: Any) -> str:
    return "training" if case.task == "training" else f"decoding, {case.length:,}"


def _table(outcomes: Sequence[Timed[Any]]) -> Table:
    headings = ("tokens/s", "ms", "p20 - p80", "x of Tr.", "calls")

    def cells(case: Any, one: Measurement) -> Sequence[str]:
        assert one.time_s is not None
        return (
            f"{case.tokens_per_call / one.time_s.p50:,.0f}",
            *time_texts(one, 1e3),
            ratio_text(one.ratios.get(_BASELINE)),
            str(one.rounds),
        )

    left = ("task", "model")
    return provider_table(
        "Language models (Tr.: Transformer)", left, headings, outcomes, _label, cells
    )
