"""Command lines, valid and corrupt: exit code 0 or 2, one line that names what is wrong."""

import contextlib
import hashlib
import io
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

import lightning_fabric  # noqa: F401  warm
from cases import COMPUTED, REFUSED, FindingError, line, require

from statemix.cli import certify, doctor, evaluate, tasks, train  # noqa: F401  warm
from statemix.cli.main import main
from statemix.layers import LayerSpec
from statemix.tasks import TASKS, TaskSpec
from statemix.training import (
    EvaluationConfig,
    ModelConfig,
    RunConfig,
    RuntimeConfig,
    ScheduleConfig,
)
from statemix_lab.cli import bench, demo, inspect, report, reproduce  # noqa: F401  warm
from statemix_lab.studies import study as catalogue
from statemix_lab.studies.exactness.exact_studies import CertifiedStudy
from statemix_lab.studies.study_entries import StudyEntry, Trials

NAME = "commands"
SHARE = 3
LIMIT_S = 60.0

# Seconds of computing after which a request must have been refused.
REFUSAL_S = 10.0
# One in so many command lines runs as a process of its own.
_PROCESSES = 40

TINY: dict[str, list[str]] = {
    "--task": ["permutation", "group=S_3", "length=4", "train_size=10"],
    "--model.layers": ["bd_lru", "num_blocks=2", "block_size=2"],
    "--model.hidden-size": ["4"],
    "--batches.size": ["8"],
    "--schedules.epochs": ["2"],
    "--evaluation.test-size": ["8"],
    "--evaluation.validation-size": ["8"],
    "--runtime.num-threads": ["1"],
    "--runtime.device": ["cpu"],
}
# Other valid values.
_FITTING: dict[str, list[list[str]]] = {
    "--task": [
        ["permutation", "group=S_4", "train_size=3"],
        ["permutation", "train_size=5"],
        ["compression", "length=4", "train_size=5"],
        ["fuzzy_recall", "length=11", "train_size=5"],
    ],
    "--model.layers": [
        ["lstm"],
        ["h_lru", "num_channels=3", "order=2", "gate=tanh", "backend=loop"],
        ["bd_lru", "num_blocks=1", "block_size=3", "gate=none", "lstm"],
        ["bd_lru", "num_blocks=4", "block_size=1", "selective=pointwise"],
    ],
    "--model.num-layers": [["1"], ["3"]],
    "--model.hidden-size": [["4"], ["5"]],
    "--model.bos": [[]],
    "--model.no-residual": [[]],
    "--model.norm": [["layer"], ["none"]],
    "--model.backbone": [["autoencoder"], ["causal"]],
    "--model.linear-init": [["normal"], ["own"]],
    "--model.embedding-init": [["features"], ["normal"]],
    "--model.channel-mixer": [["swiglu"], ["mlp", "intermediate_size=3"], ["none"]],
    "--batches.size": [["1"], ["1000"]],
    "--batches.accumulate": [["3"], ["2000000000"]],
    "--batches.packed": [[]],
    "--optimizer.learning-rate": [["1e-2"], ["1"]],
    "--optimizer.betas": [["0", "0.5"]],
    "--optimizer.clip-norm": [["0.1"], ["1e300"]],
    "--optimizer.groups": [["*.weight", "weight_decay=0"]],
    "--schedules.epochs": [["1"]],
    "--schedules.learning-rate": [["constant"]],
    "--schedules.warmup-steps": [["0"], ["2000000000"]],
    "--schedules.first-length": [["1"], ["2000000000"]],
    "--schedules.first-share": [["0.999"], ["1e-300"]],
    "--evaluation.every": [["2"], ["2000000000"]],
    "--evaluation.lengths": [["5", "9"], []],
    "--evaluation.tokens": [["1"], ["30"]],
    "--evaluation.stop-at": [["0.1"]],
    "--runtime.precision": [["64-true"], ["bf16-mixed"]],
    "--seed": [["7"], ["9223372036854775807"]],
    "--checkpoint-every-s": [["0"], ["1e9"]],
    "--model.layers.0.block_size": [["3"]],
    "--task.group": [["S_4"]],
    "--grid": [["seed=1,2"], ["optimizer.learning_rate=1e-3,1e-2", "seed=1"]],
}
_CORRUPT = (
    "", " ", "-1", "0", "1.5", "nan", "inf", "-inf", "1e400", "1" + "0" * 400, "2147483647",
    "2147483648", "1000000000", "9223372036854775808", "1048576", "1000000", "true", "none",
    "null", "[]", "{}", "[1,2]", '{"name": "lstm"}', "ü", "\x01", "a b", "=", "a=", "=b", "a=b",
    "--", "-x", "[" * 3000, "permutation", "lstm", "bd_lru", "num_blocks=1000000",
    "num_blocks=2000000000", "block_size=100000", "length=16777216", "length=16777217",
    "train_size=1000000000000", "train_size=-1", "group=S_9", "gate=nonsense", "seed=-1",
    "seed=18446744073709551616", "gate_temperature=nan", "gate_temperature=" + "9" * 400,
    "backend=cuda", "0.5", "S_3", "cuda", "/dev/null", "/", "x" * 5000, "1,2", "seed=1,1", "seed=",
)  # fmt: skip
_OTHER_FLAGS = (
    "--nonsense", "--folder", "--config", "--from", "--grid", "--workers", "--retry",
    "--imports", "--schedules.num-steps", "--schedules.attributes",
    "--evaluation.attributes",
    "--model.layers.1.gate", "--model.layers.0.num_blocks", "--optimizer.groups.0.weight_decay",
    "--optimizer.weight-decay", "--schedules.min-learning-rate", "--model.zero-biases", "-h-", "-",
)  # fmt: skip
_LONG = (
    "--schedules.epochs", "--schedules.num-steps", "--model.hidden-size",
    "--length", "--batch-size", "--max-pairs",
)  # fmt: skip
_MEASURED = {
    "--rounds": [["1"]],
    "--budget-s": [["0.01"]],
    "--threads": [["1"]],
    "--output": [["rows.jsonl"]],
}
_BENCH = {
    "ops": {
        "--shapes": [["1x3x2x2"], ["1x2x1x1"]],
        "--recurrences": [["bd_lru"], ["h_lru"]],
        "--dtype": [["float32"], ["float64"]],
        "--peers": [["lstm"], ["mamba2", "gated_delta_product"]],
    },
    "layers": {
        "--layers": [
            ["lstm"],
            ["attention", "num_heads=2", "delta_net", "num_heads=1", "conv_size=0"],
            ["bd_lru", "num_blocks=2", "block_size=2", "gate=householder"],
        ],
        "--hidden-size": [["4"], ["6"]],
        "--batch-size": [["1"], ["3"]],
        "--length": [["1"], ["7"]],
        "--dtype": [["float32"], ["float64"]],
    },
    "decode": {
        "--recurrences": [["bd_lru"], ["h_lru"]],
        "--batch-sizes": [["1"]],
        "--hidden-sizes": [["4"]],
        "--block-sizes": [["1"], ["2"]],
    },
}
_EVALUATE = {
    "--lengths": [["4"], ["1", "20"]],
    "--weights": [["last"], ["best_test"]],
    "--sequences": [["3"], ["1000"]],
    "--tokens": [["5"], ["1000"]],
    "--device": [["cpu"]],
    "--json": [[]],
}
_TASKS = {
    "--split": [["test"], ["validation"], ["train"]],
    "--start": [["0"], ["3"]],
    "--count": [["1"], ["5"]],
}
_INSPECT = {
    "--layer": [["0"]],
    "--units": [["0"], ["0", "1"], ["7"]],
    "--split": [["train"], ["validation"]],
    "--start": [["0"], ["3"]],
    "--sequences": [["1"], ["3"]],
    "--tokens": [["1"], ["5"]],
    "--weights": [["best_validation"], ["best_test"]],
    "--json": [[]],
}
_CERTIFY = {
    "--soft": [[]],
    "--weights": [["best_validation"], ["best_test"]],
    "--max-pairs": [["1"], ["50"]],
    "--json": [[]],
}
_REPORT = {"--results": [["stores"]], "--json": [[]]}
_REPRODUCE = {
    "--size": [["laptop"], ["workstation"]],
    "--protocol": [["paper"], ["mlp"], ["tuned"]],
    "--minutes": [["1"], ["0.5"]],
    "--workers": [["1"], ["2"]],
    "--retry": [[]],
    "--output": [["out"]],
    "--store": [["stores/runs.jsonl"], ["new.jsonl"]],
}
_DEMO = {"--group": [["S_3"], ["S_5"]], "--output": [["out"]], "--fresh": [[]], "--retry": [[]]}


class Request(NamedTuple):
    """A command line, for each corrupt part words of which a message should name one, and the
    same command line without the corrupt parts."""

    arguments: list[str]
    wrong: list[list[str]]
    sound: list[str]


def words_of(flags: dict[str, list[str]]) -> list[str]:
    """A command line of flags with their values."""
    return [word for flag, values in flags.items() for word in (flag, *values)]


def prepare(folder: Path) -> None:
    """Train the run that commands evaluate or start from."""
    done = folder / "run"
    if main(["train", "--folder", str(done), *words_of(TINY)]):
        raise SystemExit("the tiny run must train")


def run(r: random.Random, folder: Path, prepared: Path) -> str:
    """Run one command line in a folder of its own."""
    arguments, wrong, sound = drawn(r, folder, prepared)
    before = contents(folder)
    # In a process of its own, the demo would train its true suite.
    process = r.randrange(_PROCESSES) == 0 and arguments[:1] != ["demo"]
    began = processor_time()
    code, out, err = (separately if process else within)(arguments, folder)
    seconds = processor_time() - began
    words = f"statemix {' '.join(map(_short, arguments))}"
    require("Traceback" not in err, f"{words}: {line(err[-400:])}")
    require(code in (0, 1, 2), f"{words}: exit code {code}: {line(err)}")
    if code == 1:
        require(_DOCUMENTED.search(err), f"{words}: exit code 1: {line(err)}")
    if code != 2:
        return COMPUTED
    require(seconds < REFUSAL_S, f"{words}: refused after {seconds:.0f} s")
    lines = err.splitlines()
    require(len(lines) == 1 or not arguments, f"{words}: {len(lines)} lines: {line(err)}")
    require(len(err) < 3000, f"{words}: a line of {len(err)} characters: {line(err)}")
    require(not out or not arguments, f"{words}: refused after printing {line(out)}")
    require(contents(folder) == before, f"{words}: refused, but left files behind: {line(err)}")
    if len(wrong) == 1:
        # A message shows what came as Python writes it, control characters escaped.
        named = any(part and (part in err or repr(part)[1:-1] in err) for part in wrong[0])
        # The rest may be refused by itself, for its folder or for values that do not fit together.
        if not named and within(sound, folder)[0] != 2:
            raise FindingError(f"{words}: names none of {wrong[0]}: {line(err)}")
    return REFUSED


# Runs that diverged or failed, networks that are not proven, and files that cannot be written.
_DOCUMENTED = re.compile(
    r"must be finite|of \d+ runs: |runs have no result|the verdict on .* is|\[Errno \d+\]"
)


def processor_time() -> float:
    """Seconds of computing by this process and its children, whatever else the machine does."""
    return sum(os.times()[:4])


def within(arguments: list[str], folder: Path) -> tuple[int, str, str]:
    """Run a command line in this process."""
    out, err = io.StringIO(), io.StringIO()
    os.chdir(folder)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(arguments)
        except Exception as error:
            where = f"{type(error).__name__}: {line(error)}"
            words = f"statemix {' '.join(map(_short, arguments))}"
            raise FindingError(f"{words}: {where}") from error
    return code, out.getvalue(), err.getvalue()


def separately(arguments: list[str], folder: Path) -> tuple[int, str, str]:
    """Run a command line as a user does."""
    command = [sys.executable, "-m", "statemix", *arguments]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, timeout=LIMIT_S
    )
    return done.returncode, done.stdout, done.stderr


def drawn(r: random.Random, folder: Path, prepared: Path) -> Request:
    if r.random() < 0.02:
        head = r.choice([[], ["--help"], ["--version"], ["trian"], ["train", "--help"]])
        return Request(head, [], head)
    command = r.choices(
        [
            *("train", "evaluate", "tasks", "inspect", "certify", "reproduce", "report", "bench"),
            *("doctor", "demo"),
        ],
        (6, 3, 3, 2, 1, 2, 1, 1, 1, 1),
    )
    return globals()[f"_{command[0]}"](r, folder, prepared)


def _corrupted(r: random.Random, head: list[str], flags: dict[str, list[str]]) -> Request:
    wrong = []
    sound = [*head, *words_of(flags)]
    for _ in range(r.choice([0, 1, 1, 1, 2, 3])):
        way = r.random()
        if way < 0.7 and flags:
            flag = r.choice(list(flags))
            value = r.choice(_CORRUPT)
            if flag in _LONG and value.isdecimal():
                continue  # Such a run is no mistake.
            keep = flags[flag] if r.random() < 0.5 else []
            flags[flag] = [*keep, value] if value or keep else [value]
            wrong.append([flag, _field(flag), value[:20], value.partition("=")[0], *keep])
        elif way < 0.9:
            flag = r.choice(_OTHER_FLAGS)
            value = r.choice(_CORRUPT)
            if flag in _LONG and value.isdecimal():
                continue
            flags[flag] = [value] if r.random() < 0.8 else []
            parts = [part for value in flags[flag] for part in (value[:20], value.split("=")[0])]
            wrong.append([flag, _field(flag), *parts])
        else:
            flags[r.choice(_CORRUPT)] = []
            wrong.append([])
    words = [(flag, *values) for flag, values in flags.items()]
    r.shuffle(words)
    arguments = [word for group in words for word in group]
    # The operating system passes no NUL.
    return Request([*head, *arguments], [] if "" in arguments or [] in wrong else wrong, sound)


def _field(flag: str) -> str:
    return flag.removeprefix("--").rpartition(".")[2].replace("-", "_")


def _some(r: random.Random, choices: dict[str, list[list[str]]], most: int) -> dict[str, list[str]]:
    names = r.sample(list(choices), r.randint(0, min(most, len(choices))))
    return {name: list(r.choice(choices[name])) for name in names}


def _train(r: random.Random, folder: Path, prepared: Path) -> Request:
    flags = {name: list(values) for name, values in TINY.items()}
    given = r.random() < 0.3
    if given:
        source = _file(r, folder, prepared)
        flags = {"--config": [str(source)]}
        if r.random() < 0.3:
            flags = {"--from": [str(shutil.copytree(prepared / "run", folder / "source"))]}
    flags |= _some(r, _FITTING, 4)
    flags["--folder"] = [_target(r, folder)]
    request = _corrupted(r, ["train"], flags)
    # The file may be what is wrong.
    return request._replace(wrong=[]) if given else request


def _target(r: random.Random, folder: Path) -> str:
    """A folder for results: mostly a new one."""
    (folder / "file").write_text("text")
    (folder / "full").mkdir()
    (folder / "full" / "other.txt").write_text("text")
    odd = ["file", "file/run", "full", "/dev/null/x", "/proc/x", "x" * 300, "", ".", "a\x01b"]
    return r.choice(odd) if r.random() < 0.15 else r.choice(["run", "new/run", "ü run"])


def _file(r: random.Random, folder: Path, prepared: Path) -> Path:
    """A configuration file, often damaged."""
    asked = json.loads((prepared / "run" / "config.json").read_text())["asked"]
    places = list(_places(asked))
    for _ in range(r.choice([0, 1, 1, 2])):
        tree, name = r.choice(places)
        value = r.choice([*_CORRUPT, None, 1, -1, 2**31, 10**9, 10**400, 0.5, [], {}, [{}], True])
        with contextlib.suppress(KeyError, IndexError):
            tree[name] = value
    text = json.dumps(asked)
    if r.random() < 0.2:
        place = r.randrange(len(text))
        text = (
            text[:place] + r.choice(["", "{", '"', "\\", "9" * 50, "\0", "é"]) + text[place + 1 :]
        )
    if r.random() < 0.3:
        text = r.choice(
            ["", "seed = 3", "[task]\nname = 1", "seed = 1e400", "a" * 9, "[[a]]\n" * 9]
        )
        path = folder / "config.toml"
        with contextlib.suppress(tomllib.TOMLDecodeError):
            tomllib.loads(text)
    else:
        path = folder / "config.json"
    path.write_bytes(text.encode() if r.random() < 0.95 else b"\xff\xfe\x00" + text.encode())
    return path


def _places(tree):
    entries = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for name, value in list(entries):
        yield tree, name
        if isinstance(value, dict | list):
            yield from _places(value)


def _evaluate(r: random.Random, folder: Path, prepared: Path) -> Request:
    shutil.copytree(prepared / "run", folder / "run")
    (folder / "empty").mkdir()
    target = r.choice(["run", "run", "run", "run", "empty", "missing", "/dev/null", ""])
    return _corrupted(r, ["evaluate", target], _some(r, _EVALUATE, 4))


def _tasks(r: random.Random, folder: Path, prepared: Path) -> Request:
    head = [["tasks"], ["tasks", r.choice(list(TASKS))], ["tasks", "permutation", "length=3"]]
    return _corrupted(r, list(r.choice(head)), _some(r, _TASKS, 3))


def _bench(r: random.Random, folder: Path, prepared: Path) -> Request:
    kind = r.choice(list(_BENCH))
    flags = {name: list(r.choice(values)) for name, values in (_BENCH[kind] | _MEASURED).items()}
    return _corrupted(r, ["bench", kind], flags)


def _inspect(r: random.Random, folder: Path, prepared: Path) -> Request:
    shutil.copytree(prepared / "run", folder / "run")
    (folder / "empty").mkdir()
    target = r.choice(["run", "run", "run", "run", "empty", "missing", "/dev/null", ""])
    flags = _some(r, _INSPECT, 4)
    if r.random() < 0.5:
        flags["--output"] = [_target(r, folder)]
    return _corrupted(r, ["inspect", target], flags)


def _certify(r: random.Random, folder: Path, prepared: Path) -> Request:
    shutil.copytree(prepared / "run", folder / "run")
    target = r.choice(["run", "run", "run", "run", "missing", "/dev/null", ""])
    return _corrupted(r, ["certify", target], _some(r, _CERTIFY, 4))


def _report(r: random.Random, folder: Path, prepared: Path) -> Request:
    damaged = _stores(r, folder)
    flags = {"--results": ["stores"]} | _some(r, _REPORT, 2)
    if r.random() < 0.5:
        flags["--output"] = [_target(r, folder)]
    request = _corrupted(r, ["report", r.choice(["page", "cells", "claims"])], flags)
    return request._replace(wrong=[]) if damaged else request


def _reproduce(r: random.Random, folder: Path, prepared: Path) -> Request:
    """A plan of a few small networks, which is all that a dry run times."""
    damaged = _stores(r, folder)
    what, column = r.choice([("table4", "s3_250"), ("fig1d", "s4_3k"), ("claims", "parity")])
    flags = {"--columns": [column], "--models": ["BD-LRU m=2"]} | _some(r, _REPRODUCE, 4)
    request = _corrupted(r, ["reproduce", what, "--dry-run"], flags)
    return request._replace(wrong=[]) if damaged else request


def _stores(r: random.Random, folder: Path) -> bool:
    """Make a folder of results stores; return whether one is damaged."""
    (folder / "stores").mkdir()
    row = {"key": "0" * 20, "status": "failed", "layers": [], "environment": {}, "time_s": None}
    whole = json.dumps(row) + "\n"
    text = r.choice(["", whole, whole, whole + whole[:9], "[]\n", "{}\n", "\0", "[" * 3000 + "\n"])
    (folder / "stores" / "runs.jsonl").write_text(text)
    return not text.startswith(whole[:5])


def _doctor(r: random.Random, folder: Path, prepared: Path) -> Request:
    return _corrupted(r, ["doctor"], _some(r, {"--json": [[]]}, 1))


def _demo(r: random.Random, folder: Path, prepared: Path) -> Request:
    """The demo with studies of one tiny network."""
    config = RunConfig(
        task=TaskSpec("permutation", group="S_3", train_size=20),
        model=ModelConfig(
            layers=(LayerSpec("bd_lru", num_blocks=2, block_size=3),), hidden_size=8, bos=True
        ),
        schedules=ScheduleConfig(epochs=2),
        evaluation=EvaluationConfig(test_size=8, validation_size=8, lengths=(24,), tokens=96),
        runtime=RuntimeConfig(device="cpu", num_threads=1),
    )
    entry = StudyEntry("S_3", "BD-LRU m=3", Trials.seeded(config, (0,)))
    names = ("demo-S_3", "demo-S_5", "demo-A_5")
    studies = {name: CertifiedStudy(name, "tiny", lambda *_: [entry]) for name in names}
    catalogue._own = lambda: studies
    flags = _some(r, _DEMO, 3)
    if r.random() < 0.9:
        flags["--output"] = [_target(r, folder)]
    return _corrupted(r, ["demo"], flags)


def contents(folder: Path) -> dict[str, str]:
    """Every file and folder with a digest of what it holds."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        if path.is_file()
        else ""
        for path in folder.rglob("*")
    }


def _short(word: str) -> str:
    word = word if len(word) < 60 else f"{word[:40]}…({len(word)})"
    return word if re.fullmatch(r"[\w./=,:*-]+", word) else repr(word)
