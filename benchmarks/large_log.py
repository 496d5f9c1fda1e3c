"""Time and memory of ``statemix learn`` for a log of a million events, as a row of results.

    python benchmarks/large_log.py laboratory/results/large_log.jsonl

The log is JSON lines: 50,000 traces of 20 events of the monitor "login" with 2% wrong labels. Both
attempts run at once. The row says whether the machine answers every word as the monitor does.
"""

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from statemix.proofs.safety import check_safety
from statemix.tasks import TaskSpec
from statemix_lab.bench.harness import append_rows, describe_process
from statemix_lab.studies.exactness.learned_automata import machine_of, specification

_TRACES, _EVENTS = 50_000, 20


def main() -> None:
    """Append a row."""
    options = {"length": _EVENTS, "train_size": _TRACES, "flipped": 0.02}
    task = TaskSpec("automaton", preset="login", **options).build(seed=0)
    tokens, targets, _ = task.examples("train", 0, _TRACES)
    with tempfile.TemporaryDirectory() as folder:
        log, output = Path(folder) / "log.jsonl", Path(folder) / "learned"
        with log.open("w") as file:
            for word, answers in zip(tokens.tolist(), targets[task.head].tolist(), strict=True):
                labels = list(map(task.label, answers))
                row = {"events": list(map(task.word, word)), "labels": labels}
                file.write(json.dumps(row) + "\n")
        began = time.monotonic()
        command = [sys.executable, "-m", "statemix", "learn", str(log), "--output", str(output)]
        subprocess.run([*command, "--workers", "2"], check=True)
        wall_s = time.monotonic() - began
        learned = json.loads((output / "machine.json").read_text())
    letters, answers = task.language.letters.index, task.language.classes.index
    arrows = {
        state: {
            letters(name): (step["next"], answers(step["answer"])) for name, step in row.items()
        }
        for state, row in learned["states"].items()
    }
    machine = machine_of(learned["start"], arrows, task, 0)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    row = {
        "events": _TRACES * _EVENTS,
        "verdict": check_safety(machine, specification(task)).verdict,
        "wall_s": round(wall_s, 1),
        "cpu_s": round(used.ru_utime + used.ru_stime, 1),
        # Of the largest process.
        "memory_mb": round(used.ru_maxrss / 1024),
    }
    append_rows(Path(sys.argv[1]), [row], describe_process())
    print(row)


if __name__ == "__main__":
    main()
