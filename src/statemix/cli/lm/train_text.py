"""``statemix lm train``: train a language model on prepared tokens."""

import math
from contextlib import nullcontext
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, ClassVar

from annotated_types import Ge
from tokenizers import Tokenizer

from statemix.errors import RequestError
from statemix.layers import LayerSpec
from statemix.lm.hub_config import ATTENTION, RECURRENT, StatemixConfig
from statemix.lm.language_training import train_language_model
from statemix.lm.model_costs import MATMUL_DTYPES, count_sizes, matmul_speed, training_flops
from statemix.lm.prepared import inexact, prepare, read_prepared
from statemix.lm.presets import PRESETS, LanguageSettings, OptimizerName, PresetName
from statemix.lm.run_reports import CurveLog, TensorBoardCurves, WandbCurves, duration
from statemix.lm.text_tokenizers import end_of, save_tokenizer, with_padding
from statemix.training.config import (
    Count,
    Device,
    Fraction,
    NotNegative,
    Positive,
    Precision,
    Seed,
    chosen_device,
)
from statemix.training.devices import Strategy, check_device, join_ranks
from statemix.training.folder import WRITING_S, lock_folder
from statemix.training.progress import shown
from statemix.training.settings import source_digests

_PASSED = (
    *("gradient_checkpointing", "sequence_parallel", "precision", "device", "strategy"),
    *("checkpoint_every_s", "extend"),
)


def _silent(*_: object) -> None:
    pass


@dataclass(frozen=True)
class TrainText:
    """Train a language model on text.

    Without --tokens, the command prepares the standard library of this Python in FOLDER-tokens and
    trains on it. A run may be interrupted at any moment. Repeat the command to resume the run; the
    final weights are the same.

    statemix lm train --folder runs/python

    statemix lm train --folder runs/mine --tokens data/mine --size 10M --layer h_lru order=4
    num_channels=320 --steps 5000

    The folder receives model/, which transformers loads after `import statemix.lm`:

    AutoModelForCausalLM.from_pretrained("runs/python/model")
    """

    resumes: ClassVar[bool] = True

    folder: Path
    """Folder of the run."""

    tokens: Path | None = None
    """Folder that `statemix lm prepare` made."""

    size: PresetName = "nano"
    """Sets every number below that has no default; an option overrides it. 140M and 210M are the
    sizes of Figure 4 of the H-LRU paper."""

    layer: LayerSpec | None = None
    """Sequence layer of the blocks, with its options (BD-LRU if not given)."""

    attention_every: Count | None = None
    """Distance between attention blocks: 4 makes every fourth block attention with rotary
    positions. (No attention if not given.)"""

    conv_size: Annotated[int, Ge(0)] = 0
    """Tokens that a short convolution before each recurrent layer combines; 0 means no
    convolution."""

    output_gate: bool = False
    """Multiply the output of each recurrent layer by a gate that depends on the token."""

    hidden_size: Count | None = None
    """Width of the residual stream."""

    num_layers: Count | None = None
    """Number of blocks."""

    length: Count | None = None
    """Tokens of a training sequence."""

    batch_size: Count | None = None
    """Sequences in an optimiser step, over all processes."""

    accumulate: Count = 1
    """Number of forward passes that share the sequences of a step. A larger number needs less
    memory."""

    steps: Count | None = None
    """Number of optimiser steps."""

    learning_rate: Positive | None = None
    """Largest learning rate, reached after the warm-up."""

    optimizer: OptimizerName = "adamw"
    """adamw; or muon, which trains the matrices of MLPs and the value and output projections with
    Muon, and all other weights with AdamW. Both have the same learning rate."""

    weight_decay: NotNegative = 0.1
    """Weight decay of matrices; vectors have none."""

    min_learning_rate: NotNegative = 1e-5
    """Learning rate at the end of the cosine, which the last step nearly reaches."""

    warmup_share: Fraction = 0.1
    """Share of the steps in which the learning rate rises from 0."""

    clip_norm: Positive = 1.0
    """Largest norm of the gradient; a longer gradient is scaled down."""

    evaluate_every: Count = 200
    """Steps between two evaluations."""

    evaluate_bytes: Count = 200_000
    """Number of held-out bytes that each evaluation during training scores; it ends with a
    document."""

    precision: Precision = "32-true"
    """Precision of weights and arithmetic. bf16-mixed keeps float32 weights and multiplies matrices
    in bfloat16."""

    compile: bool = False
    """Compile the blocks with torch.compile."""

    gradient_checkpointing: bool = False
    """Save memory and take more time: keep only the inputs of the blocks, and compute the rest
    again in the backward pass."""

    device: Device = "auto"
    """Device; auto uses a GPU if there is one."""

    strategy: Strategy = "ddp"
    """How the processes of torchrun share the model. With ddp, each process holds the whole model;
    with fsdp, each process holds a part of it."""

    sequence_parallel: bool = False
    """Let the processes share every sequence, each with a slice of its time, instead of the
    sequences: for sequences that are too long for the memory of one process. The layers must be
    bd_lru, h_lru or conv."""

    seed: Seed = 0
    """Seed of the weights and of the order of the data."""

    checkpoint_every_s: NotNegative | None = None
    """Seconds between checkpoints (10 if not given, or more where checkpoints would take more than
    2% of the time)."""

    wandb: str | None = None
    """Weights & Biases project that also receives the curves."""

    extend: bool = False
    """Train an existing run for more steps: repeat its command with --extend and a larger
    --steps."""

    imports: tuple[str, ...] = ()
    """Python modules to import first, which register your own layers."""

    def run(self) -> None:
        """Train, and print the result."""
        check_device("device", self.device)
        ranks = join_ranks(self.device)
        data = ranks.on_first(self._prepared)
        tokens, held_out, tokenizer = read_prepared(data)
        config, settings = self.request(tokenizer)
        # One process reports for all.
        report = print if ranks.is_first else _silent
        if (lossy := inexact(held_out)) is not None:
            report(lossy)
        report(self._costs(config, settings, len(tokens.ids), ranks.size))
        curves: list[CurveLog] = []
        if ranks.is_first:
            curves.append(TensorBoardCurves(self.folder / "tensorboard"))
            if self.wandb is not None:
                curves.append(WandbCurves(self.wandb, self.folder))
        with shown() if ranks.is_first else nullcontext(_silent) as show:
            _, fitted = train_language_model(
                config,
                tokens,
                held_out,
                self.folder,
                settings,
                most_bytes=self.evaluate_bytes,
                compiled=self.compile,
                on_event=lambda event: show(self.folder.name, event),
                curves=curves,
                **{name: getattr(self, name) for name in _PASSED},
                information={"imports": list(self.imports), **source_digests(self.imports)},
            )
        if ranks.is_first:
            with lock_folder(self.folder / "model", patience_s=WRITING_S):
                save_tokenizer(tokenizer, self.folder / "model")
        # Files of finished runs have None for infinity.
        scores = {k: math.inf if v is None else v for k, v in fitted.last["scores"].items()}
        report(
            f"{scores['bits_per_byte']:.4f} bits per byte, perplexity {scores['perplexity']:.2f}, "
            f"{fitted.time_s:.1f} s; stored in {self.folder}"
        )
        # If another process ended badly now, torchrun would end the first before all is stored.
        ranks.wait()

    def _costs(
        self, config: StatemixConfig, settings: LanguageSettings, available: int, processes: int
    ) -> str:
        """Return what the run costs, for a reader."""
        sizes, flops = count_sizes(config), sum(training_flops(config, settings.length))
        dtype = MATMUL_DTYPES[self.precision]
        speed = processes * matmul_speed(chosen_device(self.device), dtype)
        grows = " and a cache that grows" if "full_attention" in config.layer_types else ""
        to_read = settings.steps * settings.batch_size * settings.length
        return (
            f"{sizes['parameters']:,} parameters, {sizes['state_bytes']:,} bytes of state per "
            f"sequence{grows}, {flops / 1e6:,.1f} MFLOPs per training token\n"
            f"{to_read:,} tokens to read of {available:,}: at least "
            f"{duration(flops * to_read / speed)}, the time of matrix products at "
            f"{speed / 1e9:,.0f} GFLOP/s; the step line shows the time left"
        )

    def _prepared(self) -> Path:
        """Return the folder of the tokens; it is prepared if none was given."""
        if self.tokens is not None:
            return self.tokens
        folder = self.folder if self.folder.name not in ("", "..") else self.folder.resolve()
        data = folder.parent / f"{folder.name}-tokens"
        # The last file that is made.
        if not (data / "held_out.bin").exists():
            prepare(["stdlib"], data)
        return data

    def request(self, tokenizer: Tokenizer) -> tuple[StatemixConfig, LanguageSettings]:
        """Return the model and the training that the options ask for."""
        preset = PRESETS[self.size]
        numbers = vars(preset) | {k: v for k, v in vars(self).items() if v is not None}
        width, depth, layer = numbers["hidden_size"], numbers["num_layers"], self.layer
        if layer is None:
            num_blocks = max(1, preset.num_blocks * width // preset.hidden_size)
            layer = LayerSpec("bd_lru", num_blocks=num_blocks, block_size=preset.block_size)
        if self.attention_every is not None and self.attention_every > depth:
            raise RequestError(
                f"attention_every must be at most {depth}, the number of layers, got "
                f"{self.attention_every}"
            )
        kinds = [RECURRENT] * depth
        if self.attention_every is not None:
            last = self.attention_every - 1
            kinds[last :: self.attention_every] = [ATTENTION] * (depth // self.attention_every)
        # The model folder stores the tokenizer with padding.
        tokenizer, padding = with_padding(tokenizer)
        config = StatemixConfig(
            # Matrix products on GPUs are slow if their sides are no multiples of 8.
            vocab_size=-(-tokenizer.get_vocab_size() // 8) * 8,
            hidden_size=width,
            num_hidden_layers=depth,
            layer_types=kinds,
            mixers={RECURRENT: {"name": layer.name, **layer.options}},
            conv_size=self.conv_size,
            output_gate=self.output_gate,
            tie_word_embeddings=preset.tied,
            pad_token_id=padding,
            eos_token_id=end_of(tokenizer),
            bos_token_id=end_of(tokenizer),
        )
        names = [field.name for field in fields(LanguageSettings)]
        return config, LanguageSettings(**{name: numbers[name] for name in names})
