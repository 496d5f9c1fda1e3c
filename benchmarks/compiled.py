"""How fast proven networks are before and after ``statemix compile``, as rows of results.

    python benchmarks/compiled.py laboratory/results/compiled.jsonl runs/random-8 runs/S_8

All forms of a network read the same test words, with one thread. Every form must give the right
answers: index maps after the last token, the others after every token.
"""

import argparse
import ctypes
import json
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from statemix.proofs import EntryMachine, StateMachine
from statemix.training.certificates import load_proven
from statemix.training.outcome import load_outcome
from statemix_lab.bench.harness import Provider, append_rows, describe_process, measure

_WORDS, _LENGTH = 16, 4096


def main() -> None:
    """Measure every run, and append a row for each form of its network."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    process = describe_process()
    for run in arguments.runs:
        config = load_outcome(run).config
        task = config.build_task()
        examples = task.examples("test", 0, _WORDS, _LENGTH)
        right = np.stack([*examples.targets.values()], -1)
        network = load_proven(run)
        certificate = json.loads((run / "certificate.json").read_text())
        kind = EntryMachine if certificate["method"] == "structure" else StateMachine
        machine = kind.from_tables(certificate["tables"])
        calls = {
            "network": _network(network, torch.from_numpy(examples.tokens)),
            "NumPy": _numpy(machine, examples.tokens),
            "C": _c(machine, examples.tokens),
        }
        for call in calls.values():
            answers = call()
            expected = right[:, -1] if answers.ndim == 2 else right
            np.testing.assert_array_equal(answers, expected)
        measured = measure(
            [Provider(name, lambda call=call: call) for name, call in calls.items()],
            relative_to=("network",),
            rounds=arguments.rounds,
            budget_s=60.0,
            tolerance=0.0,
            seed=0,
        )
        layer = network.backbone.blocks[0].mixer
        for form in measured:
            assert form.time_s is not None
            row = {
                "benchmark": "compiled",
                "run": run.name,
                "task": {"name": task.name, **config.task.options},
                "form": form.provider,
                "entries": layer.num_blocks * layer.block_size,
                "size": machine.summary,
                "tokens": examples.tokens.size,
                "time_s": form.time_s._asdict(),
                "ratios": form.to_row()["ratios"],
                "rounds": form.rounds,
            }
            append_rows(arguments.output, [row], process)
            ms = 1e9 * form.time_s.p50 / examples.tokens.size
            print(f"{run.name:12} {form.provider:8} {ms:10.1f} ms per million tokens")


def _network(network: Any, tokens: torch.Tensor) -> Callable[[], Any]:
    @torch.no_grad()
    def call() -> Any:
        logits = network(tokens)
        return torch.stack([head.argmax(-1) for head in logits.values()], -1).numpy()

    return call


def _numpy(machine: Any, tokens: np.ndarray) -> Callable[[], Any]:
    if isinstance(machine, EntryMachine):
        return lambda: machine.answers(machine.run(tokens))
    return lambda: machine.run(tokens)[0][..., None]


def _c(machine: Any, tokens: np.ndarray) -> Callable[[], Any]:
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "machine.c"), Path(folder, "machine.so")
        source.write_text(machine.to_c("m"))
        command = ["cc", "-std=c99", "-O2", "-shared", "-fPIC", "-o", library, source]
        subprocess.run(command, check=True)
        functions = ctypes.CDLL(str(library))
    words = np.ascontiguousarray(tokens, dtype=np.uint32)
    places = len(machine.read) if isinstance(machine, EntryMachine) else 1
    # No entry takes more than four bytes.
    entries = len(machine.start) if isinstance(machine, EntryMachine) else 1
    state = (ctypes.c_uint32 * entries)()

    def word(row: np.ndarray) -> Any:
        count, letters = ctypes.c_size_t(len(row)), ctypes.c_void_p(row.ctypes.data)
        if isinstance(machine, EntryMachine):
            functions.m_begin(state)
            functions.m_run(state, letters, count)
            return [functions.m_answer(state, place) for place in range(places)]
        state[0] = 0
        answers = np.empty((len(row), 1), np.int32)
        functions.m_run(state, letters, count, ctypes.c_void_p(answers.ctypes.data))
        return answers

    return lambda: np.array([word(row) for row in words])


if __name__ == "__main__":
    main()
