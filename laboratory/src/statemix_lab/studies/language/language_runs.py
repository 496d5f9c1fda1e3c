"""One language model of a study: its text, its model, its training, and its scores."""

import hashlib
import json
import re
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from filelock import FileLock

from statemix import files
from statemix.sweeps.runner import StudyRun
from statemix.training import Event
from statemix.training.config import Precision
from statemix.training.devices import threads
from statemix.training.folder import METRICS, WRITING_S, lock_folder
from statemix.training.loop import Hook, Loop

if TYPE_CHECKING:
    from statemix.lm.hub_config import StatemixConfig
    from statemix.lm.shards import TokenFile

SCORES = "language.json"
"""File of the scores in the folder of a run."""

VALIDATION_SHARE = 4
"""One of so many held-out bytes chooses learning rates and draws curves; the others score."""

_XZ = "xz.json"
# Steps that are timed for a prediction, after one that is not.
_TIMED = 2


@dataclass(frozen=True)
class StudyCorpus:
    """A text, as ``statemix lm prepare`` reads it: names or paths, the tokenizer, documents."""

    sources: tuple[str, ...] = ("stdlib",)
    tokenizer: str = "bpe:2048"
    most_documents: int | None = None

    @property
    def name(self) -> str:
        """The name of its folder, which no other corpus has."""
        words = "-".join((*self.sources, self.tokenizer))
        digest = hashlib.sha256(json.dumps(asdict(self)).encode()).hexdigest()
        return f"tokens-{re.sub('[^a-z0-9]+', '-', words.lower())[:60]}-{digest[:12]}"


@dataclass(frozen=True)
class LanguageRun(StudyRun):
    """A language model to train on tokens that are prepared beside the folders of all runs."""

    corpus: StudyCorpus
    model: Mapping[str, Any]
    training: Mapping[str, Any]
    seed: int = 0
    precision: Precision = "32-true"
    num_threads: int | None = 1

    def asked(self) -> dict[str, Any]:
        return {"language": json.loads(json.dumps(asdict(self)))}

    def config(self, vocab_size: int, end: int | None) -> "StatemixConfig":
        """Return the configuration of the model for a vocabulary with an end token."""
        from statemix.lm.hub_config import StatemixConfig

        return StatemixConfig(
            vocab_size=vocab_size, bos_token_id=end, eos_token_id=end, **self.model
        )

    def train(
        self, folder: Path, on_event: Callable[[Event], None], checkpoint_every_s: float | None
    ) -> None:
        from statemix.lm.language_scores import bits_per_byte
        from statemix.lm.language_training import train_language_model
        from statemix.lm.model_costs import count_sizes
        from statemix.lm.prepared import read_prepared
        from statemix.lm.presets import LanguageSettings
        from statemix.lm.text_tokenizers import end_of

        data = folder.parent / self.corpus.name
        compressed = _prepare(self.corpus, data)
        tokens, held_out, tokenizer = read_prepared(data)
        validation, test = split(held_out)
        config = self.config(tokenizer.get_vocab_size(), end_of(tokenizer))
        settings = LanguageSettings(seed=self.seed, **self.training)
        with quiet():
            model, _ = train_language_model(
                config,
                tokens,
                validation,
                folder,
                settings,
                hooks=[ProcessorTime(settings.batch_size * settings.length)],
                precision=self.precision,
                num_threads=self.num_threads,
                on_event=on_event,
                checkpoint_every_s=checkpoint_every_s,
            )
            if (folder / SCORES).exists():
                return
            with threads(self.num_threads or torch.get_num_threads()):
                scored = {"validation": validation, "test": test, "held_out": held_out}
                scores = {name: bits_per_byte(model, part) for name, part in scored.items()}
        lines = (folder / METRICS).read_text(encoding="utf-8").splitlines()
        points = [
            {
                **{name: row[name] for name in ("step", "tokens", "cpu_s", "time_s")},
                **row["scores"],
                "loss": row["train"]["loss"],
            }
            for row in map(json.loads, lines)
        ]
        found = {
            **count_sizes(config),
            "scores": scores,
            "curve": points,
            "corpus": {
                "sha256": {**tokens.info["sha256"], **held_out.info["sha256"]},
                "tokenizer_sha256": held_out.info["tokenizer_sha256"],
                "bytes": {name: part.num_bytes for name, part in scored.items()},
                **compressed,
            },
        }
        with lock_folder(folder, patience_s=WRITING_S):
            files.write_file(folder / SCORES, json.dumps(found, allow_nan=False).encode())

    def seconds(self) -> float | None:
        if self.num_threads is None:
            return None
        sizes = [self.training[name] for name in ("batch_size", "length")]
        step_s = _step_seconds(json.dumps(self.model), *sizes, self.num_threads)
        return float(self.training["steps"] * step_s)

    def described(self) -> dict[str, Any]:
        task = {"name": "language", **asdict(self.corpus)}
        return {"layers": list(self.model["mixers"].values()), "task": task}

    def results(self, folder: Path) -> dict[str, Any]:
        found = read_scores(folder)
        last = found["curve"][-1]
        return {
            "language": found,
            "num_parameters": found["parameters"],
            "time_s": last["time_s"],
            "num_steps": last["step"],
        }

    def ending(self, folder: Path) -> str:
        found = read_scores(folder)
        cpu_s = found["curve"][-1]["cpu_s"]
        bits = found["scores"]["test"]["bits_per_byte"]
        return f"{bits:.4f} bits per byte, {cpu_s:.0f} CPU seconds of training"


@cache
def _step_seconds(model: str, batch_size: int, length: int, num_threads: int) -> float:
    """Return the seconds of a step on random tokens; the model is JSON of its arguments."""
    from statemix_lab.bench.language_timing import LanguageCase, built, training_call

    with threads(num_threads), quiet():
        call = training_call(built(json.loads(model)), LanguageCase("training", batch_size, length))
        call()
        began = time.perf_counter()
        for _ in range(_TIMED):
            call()
    return (time.perf_counter() - began) / _TIMED


@contextmanager
def quiet() -> Iterator[None]:
    """Hide that a layer has not converged: the limit of iterations is part of the request."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".* has not converged")
        yield


class ProcessorTime(Hook):
    """Counts the processor time of the steps, without evaluations, and the tokens they read."""

    def __init__(self, tokens_per_step: int) -> None:
        self._tokens, self._total, self._since = tokens_per_step, 0.0, 0.0

    def before_step(self, loop: Loop) -> None:
        del loop
        self._since = time.process_time()

    def after_step(self, loop: Loop, loss: float) -> None:
        del loop, loss
        self._total += time.process_time() - self._since

    def row(self, loop: Loop) -> dict[str, Any]:
        # The evaluation, which has just ended, does not count.
        self._since = time.process_time()
        return {"cpu_s": self._total, "tokens": loop.step * self._tokens}

    def state_dict(self) -> dict[str, Any]:
        return {"cpu_s": self._total}

    def load_state_dict(self, state: Mapping[str, Any], tensors: Any) -> None:
        del tensors
        self._total = state["cpu_s"]


def split(held_out: "TokenFile") -> "tuple[TokenFile, TokenFile]":
    """Return the held-out documents that choose and draw, and those that score."""
    counts = held_out.info["document_bytes"]
    cut, size = 0, 0
    while cut < len(counts) - 1 and VALIDATION_SHARE * size < sum(counts):
        size += counts[cut]
        cut += 1

    def part(begin: int, end: int) -> "TokenFile":
        bounds = held_out.bounds[begin : end + 1]
        info = {**held_out.info, "document_bytes": counts[begin:end]}
        return replace(held_out, bounds=bounds, info=info)

    return part(0, cut), part(cut, len(counts))


def _prepare(corpus: StudyCorpus, folder: Path) -> dict[str, float]:
    """Prepare the tokens unless they exist; return the bits per byte of a compressor."""
    from statemix.lm.prepared import compressed_bits_per_byte, prepare, read_prepared

    folder.parent.mkdir(parents=True, exist_ok=True)
    # Several processes may fill one store.
    with FileLock(f"{folder}.lock"):
        if not (folder / _XZ).exists():
            # The last file that is made.
            if not (folder / "held_out.bin").exists():
                fields = asdict(corpus)
                prepare(fields.pop("sources"), folder, **fields)
            tokens, held_out, tokenizer = read_prepared(folder)
            _, test = split(held_out)
            bits = compressed_bits_per_byte(tokens, test, tokenizer)
            files.write_file(folder / _XZ, json.dumps(bits).encode())
    return files.read_json(folder / _XZ, "scores")


def read_scores(folder: Path) -> dict[str, Any]:
    """Return the scores of a finished run."""
    return files.read_json(folder / SCORES, "scores")
