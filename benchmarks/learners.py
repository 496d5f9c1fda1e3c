"""Which learners find machines in traces with wrong labels, as rows of results.

    python benchmarks/learners.py laboratory/results/learners.jsonl --noise 0.05 --seeds 1

The machines are models of protocol implementations in ``benchmarks/protocol_models``, which come
from AALpy under its licence, and random machines of 5, 10 and 20 states. Every learner reads the
same 2,000 traces of 20 events, of which half are covering words (the page "Automata as input"). A
learner is exact if it answers every word as the machine does. A learner that needs longer than
--limit seconds of the processor has no result. Rows that the file has are not measured again.
"""

import argparse
import contextlib
import json
import multiprocessing
import resource
import signal
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
from aalpy.utils import load_automaton_from_file

from statemix.automaton import merge_states
from statemix.proofs.safety import check_safety
from statemix.tasks import TaskSpec
from statemix_lab.bench.harness import append_rows, describe_process
from statemix_lab.studies.exactness.learned_automata import READERS, labelled, specification

_MODELS = Path(__file__).parent / "protocol_models"
_TRACES, _EVENTS = 2000, 20


def main() -> None:
    """Append a row for each machine, seed and learner."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--noise", type=float, default=0.05)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--limit", type=int, default=120, help="seconds of the processor")
    parser.add_argument("--learners", nargs="+", choices=READERS, default=list(READERS))
    parser.add_argument("--only", default="", help="part of the names of machines to measure")
    arguments = parser.parse_args()
    process = describe_process()
    arguments.output.touch()
    known = [json.loads(line) for line in arguments.output.read_text().splitlines()]
    # Small machines first.
    for name, rules in sorted(machines(), key=lambda machine: len(machine[1])):
        if arguments.only not in name:
            continue
        for seed in range(arguments.seeds):
            for learner in arguments.learners:
                row = {"machine": name, "learner": learner, "noise": arguments.noise, "seed": seed}
                if any(row.items() <= other.items() for other in known):
                    continue
                row |= limited(learner, rules, arguments.noise, seed, arguments.limit)
                append_rows(arguments.output, [row], process)
                print(row, flush=True)


def machines() -> Iterator[tuple[str, str]]:
    """Return the name and the transition table of each machine."""
    for path in sorted(_MODELS.glob("*.dot")):
        model = load_automaton_from_file(str(path), "mealy")
        numbers = {state: number for number, state in enumerate(model.states)}
        letters = sorted({letter for state in model.states for letter in state.transitions})
        answers = sorted({answer for state in model.states for answer in state.output_fun.values()})
        after, output = (np.zeros((len(numbers), len(letters)), np.int64) for _ in range(2))
        for state, row in numbers.items():
            after[row] = [numbers[state.transitions[letter]] for letter in letters]
            output[row] = [answers.index(state.output_fun[letter]) for letter in letters]
        after, kept = merge_states(numbers[model.initial_state], after, output)
        yield path.stem, table(after, output[kept])
    for num_states in (5, 10, 20):
        rng = np.random.default_rng(num_states)
        while True:
            after = rng.integers(num_states, size=(num_states, 4))
            output = rng.integers(3, size=(num_states, 4))
            smallest, kept = merge_states(0, after, output)
            if len(kept) == num_states:
                break
        yield f"random-{num_states}", table(smallest, output[kept])


def table(after: np.ndarray, output: np.ndarray) -> str:
    """Return an automaton as text, with numbers for names."""
    lines = [
        f"q{state} e{letter} q{after[state, letter]} a{output[state, letter]}"
        for state, letter in np.ndindex(after.shape)
    ]
    return "\n".join(["start: q0", *lines])


def limited(learner: str, rules: str, noise: float, seed: int, limit: int) -> dict[str, object]:
    """Let a process learn, and end it after a time."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    arguments = sender, learner, rules, noise, seed, limit
    worker = multiprocessing.Process(target=learned, args=arguments)
    worker.start()
    sender.close()
    found: dict[str, object] = {"verdict": "no result", "cpu_s": limit}
    with contextlib.suppress(EOFError):
        found = receiver.recv()
    worker.join()
    # A defect must not count as a learner that took too long.
    if worker.exitcode not in (0, -signal.SIGXCPU, -signal.SIGKILL):
        raise RuntimeError(f"{learner} ended with exit code {worker.exitcode}")
    return found


def learned(
    sender: Connection, learner: str, rules: str, noise: float, seed: int, limit: int
) -> None:
    """Send what a learner has found; the system ends this process at the limit."""
    options = {"length": _EVENTS, "train_size": _TRACES, "flipped": noise}
    task = TaskSpec("automaton", rules=rules, **options).build(seed=seed)
    words = labelled(task, 0)
    used = int(time.process_time())
    resource.setrlimit(resource.RLIMIT_CPU, (used + limit, used + limit))
    began = time.process_time()
    machine = READERS[learner](words, task)
    cpu_s = time.process_time() - began
    tokens, targets, _ = task.examples("test", 0, 100, 1000)
    sender.send(
        {
            "states": task.automaton().num_states,
            "found_states": machine.minimized().num_states,
            "verdict": check_safety(machine, specification(task)).verdict,
            "accuracy": float((machine.run(tokens)[0] == targets[task.head]).mean()),
            "cpu_s": round(cpu_s, 2),
        }
    )


if __name__ == "__main__":
    main()
