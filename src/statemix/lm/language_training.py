"""Train a language model on prepared tokens."""

import copy
import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from statemix.errors import RequestError
from statemix.layers import LAYERS
from statemix.lm.hub_config import StatemixConfig
from statemix.lm.hub_model import StatemixForCausalLM
from statemix.lm.language_optimizers import CosineRate, optimizer_of
from statemix.lm.language_scores import bits_per_byte, document_bytes, summed_loss
from statemix.lm.model_costs import MATMUL_DTYPES, matmul_speed, training_flops
from statemix.lm.prepared import without_progress_bars
from statemix.lm.presets import LanguageSettings
from statemix.lm.run_reports import CurveLog, StepLine
from statemix.lm.shards import TokenFile, check_ids
from statemix.training import Fitted, fit
from statemix.training.config import Device, Precision, chosen_device
from statemix.training.devices import ALONE, Ranks, ranks_here
from statemix.training.folder import WRITING_S, lock_folder
from statemix.training.loop import Event, Hook

# Sequences that an error names.
_SHOWN = 8


class TokenBatches:
    """Windows of ``length`` + 1 tokens, in an order that depends on seed, epoch and place alone.

    Each process of ``ranks`` gets its share of each step, or, with ``sequence_parallel``, a slice
    of the time of every sequence. ``began`` is the time at which ``step`` asked for its batches.
    """

    def __init__(
        self,
        ids: Any,
        settings: LanguageSettings,
        ranks: Ranks = ALONE,
        *,
        sequence_parallel: bool = False,
    ) -> None:
        self._ids, self._settings = ids, settings
        # Processes that share each sequence all get every sequence.
        self._ranks = ALONE if sequence_parallel else ranks
        shares = self._ranks.size * settings.accumulate
        if settings.batch_size < shares:
            raise RequestError(
                f"batch_size must be at least {shares} with accumulate={settings.accumulate} and "
                f"{self._ranks.size} processes, got {settings.batch_size}"
            )
        self._slice = slice(0, settings.length + 1)
        if sequence_parallel:
            if settings.length < ranks.size:
                raise RequestError(
                    f"length must be at least {ranks.size} for {ranks.size} processes with "
                    f"sequence_parallel, got {settings.length}"
                )
            places = np.array_split(np.arange(settings.length), ranks.size)[ranks.rank]
            # The target of the last token is the first token of the next slice.
            self._slice = slice(int(places[0]), int(places[-1]) + 2)
        self._windows = (len(ids) - settings.length) // settings.length
        self.steps_per_epoch = self._windows // settings.batch_size
        self.num_steps = settings.steps
        if self.steps_per_epoch < 1:
            raise RequestError(
                f"tokens must fill one step of {settings.batch_size} sequences of "
                f"{settings.length} tokens, got {len(ids)}"
            )
        self._epoch, self.step, self.began = -1, 0, 0.0

    def parts(self, step: int) -> Sequence[Tensor]:
        """Return the batches of this process in a step, each (b, its length + 1), int64."""
        self.step, self.began = step, time.monotonic()
        rank, number = self._ranks.rank, self._settings.accumulate
        shares = np.array_split(self.places(step), self._ranks.size * number)
        pieces = [
            np.stack([self._ids[place:][self._slice] for place in share]).astype(np.int64)
            for share in shares[rank * number : (rank + 1) * number]
            if len(share)
        ]
        return [torch.from_numpy(piece) for piece in pieces]

    def places(self, step: int) -> list[int]:
        """Return where the sequences of a step begin."""
        epoch, place = divmod(step, self.steps_per_epoch)
        if epoch != self._epoch:
            stream = np.random.Philox(np.random.SeedSequence([self._settings.seed, epoch]))
            # All windows, so that those which fill no step are others in each epoch.
            draws = stream.random_raw(self._windows + 1)
            self._offset = int(draws[-1] % self._settings.length)
            self._order, self._epoch = np.argsort(draws[:-1], kind="stable"), epoch
        size = self._settings.batch_size
        chosen = self._order[place * size : (place + 1) * size]
        return [self._offset + int(window) * self._settings.length for window in chosen]


def _digest(tokens: TokenFile) -> str:
    """Return a hash of tokens, by the checksums that their file states if it does."""
    stated = tokens.info.get("sha256")
    content: Any = json.dumps(stated).encode() if stated else np.ascontiguousarray(tokens.ids).data
    return hashlib.sha256(content).hexdigest()[:16]


def train_language_model(
    config: StatemixConfig,
    tokens: TokenFile,
    held_out: TokenFile,
    folder: Path,
    settings: LanguageSettings,
    *,
    most_bytes: int | None = None,
    compiled: bool = False,
    gradient_checkpointing: bool = False,
    sequence_parallel: bool = False,
    precision: Precision = "32-true",
    device: Device = "auto",
    on_event: Callable[[Event], None] | None = None,
    curves: Sequence[CurveLog] = (),
    hooks: Sequence[Hook] = (),
    information: Mapping[str, Any] | None = None,
    **options: Any,
) -> tuple[StatemixForCausalLM, Fitted]:
    """Train a language model, or resume its training, and store it in ``model/`` of the folder.

    The options are those of ``statemix lm train`` (``most_bytes`` is its ``--evaluate-bytes``) and
    of :func:`statemix.training.fit`. ``on_event`` and ``curves`` receive each event, in which the
    text of a step is its step line.
    """
    if sequence_parallel and compiled:
        raise RequestError("compile must be off with sequence_parallel, got it on")
    for place, table in enumerate(config.block_mixers if sequence_parallel else ()):
        if not LAYERS[table["name"]].sliceable:
            known = ", ".join(name for name, layer in LAYERS.items() if layer.sliceable)
            raise RequestError(
                f"sequence_parallel needs layers among {known}, got {table['name']} in block "
                f"{place}"
            )
        if (every := table.get("checkpoint_every")) is not None:
            raise RequestError(
                f"checkpoint_every must be None with sequence_parallel, got {every} in block "
                f"{place}; use gradient_checkpointing"
            )
    for given in (tokens, held_out):
        size = given.info.get("vocab_size", 0)
        if size > config.vocab_size:
            raise RequestError(
                f"{given.path} must have at most {config.vocab_size} tokens, got {size}"
            )
    document_bytes(held_out)
    names = {table["name"] for table in config.block_mixers}
    # To store the model changes its configuration, by which the same call is found again.
    config = copy.deepcopy(config)
    if "attention" in names and config.training_length is None:
        config.training_length = settings.length
    torch.manual_seed(settings.seed)
    model = StatemixForCausalLM(config)
    ranks = ranks_here()
    batches = TokenBatches(tokens.ids, settings, ranks, sequence_parallel=sequence_parallel)
    per_step = settings.batch_size * settings.length
    dtype, num_threads = MATMUL_DTYPES[precision], options.get("num_threads")
    speed = ranks.size * matmul_speed(chosen_device(device), dtype, num_threads)
    line = StepLine(
        batches,
        tokens_per_step=per_step,
        flops_per_token=sum(training_flops(config, settings.length)),
        matmul_speed=speed,
        bytes_per_token=tokens.num_bytes and tokens.num_bytes / len(tokens.ids),
    )
    identity = {
        "model": json.loads(config.to_json_string(use_diff=False)),
        "training": asdict(settings),
        "tokens": tokens.info.get("sha256", str(tokens.path)),
    }
    for name in ("transformers_version", "training_length"):
        identity["model"].pop(name, None)
    # A run may be extended, and runs of older versions state no optimiser.
    left_out = ["steps", "evaluate_every", *(["optimizer"] * (settings.optimizer == "adamw"))]
    for name in left_out:
        del identity["training"][name]
    if gradient_checkpointing:
        # transformers 5.24 has renamed the method.
        old = model.gradient_checkpointing_enable
        enable: Any = getattr(model, "activation_checkpointing_enable", old)
        enable({"use_reentrant": False})
    if compiled:
        # All blocks of a kind share their graph.
        for block in model.model.layers:
            block.compile()

    def loss(net: nn.Module, batch: Tensor) -> Tensor:
        check_ids(str(tokens.path), batch, config.vocab_size)
        # Fabric's autocast covers calls of the whole model alone.
        is_mixed = precision == "bf16-mixed"
        place = next(net.parameters()).device
        with torch.autocast(place.type, torch.bfloat16, enabled=is_mixed):
            shared = (dist.group.WORLD,) if sequence_parallel and ranks.size > 1 else ()
            return summed_loss(net, batch.to(place), *shared) / per_step

    def evaluate(net: Any) -> Mapping[str, float]:
        # Documents have many lengths, each of which would be compiled.
        with torch.compiler.set_stance("force_eager") if compiled else nullcontext():
            return bits_per_byte(net, held_out, most_bytes=most_bytes)

    def emit(event: Event) -> None:
        event = line.describe(event)
        for receive in (*(log.note for log in curves), *filter(None, [on_event])):
            receive(event)

    try:
        fitted = fit(
            model,
            batches,
            loss,
            folder,
            num_steps=settings.steps,
            optimizer=optimizer_of(model, settings),
            evaluate=evaluate,
            evaluate_every=settings.evaluate_every,
            settings=identity,
            information={
                "tokens": _digest(tokens),
                "held_out": _digest(held_out),
                "evaluate_bytes": most_bytes,
                "compile": compiled,
                "sequence_parallel": sequence_parallel,
                **(information or {}),
            },
            hooks=[CosineRate(settings), line, *curves, *hooks],
            clip_norm=settings.clip_norm,
            seed=settings.seed,
            precision=precision,
            device=device,
            on_event=emit,
            **options,
        )
    except FloatingPointError as error:
        places, shown = batches.places(batches.step), []
        for place in places[:_SHOWN]:
            # The last token is the target of the token before.
            ends = [place, place + settings.length]
            first, last = map(int, np.searchsorted(tokens.bounds, ends, side="right") - 1)
            named = f"document {first}" if first == last else f"documents {first} to {last}"
            shown.append(f"{place} ({named})")
        rest = len(places) - len(shown)
        further = f" and {rest} further tokens" if rest else ""
        text = f"the sequences of its batch begin in {tokens.path} at token {', '.join(shown)}"
        raise FloatingPointError(f"{error}; {text}{further}") from error
    if ranks.is_first:
        with without_progress_bars(), lock_folder(folder / "model", patience_s=WRITING_S):
            model.eval().save_pretrained(folder / "model")
    return model, fitted
