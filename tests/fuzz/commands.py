"""Command lines, valid and corrupt: exit code 0 or 2, one line that names what is wrong."""

import contextlib
import hashlib
import io
import json
import os
import random
import re
import shutil
from pathlib import Path
from typing import NamedTuple

import lightning_fabric  # noqa: F401  warm
from cases import COMPUTED, REFUSED, FindingError, line, require

from statemix.cli import evaluate, tasks, train  # noqa: F401  warm
from statemix.cli.main import main
from statemix.tasks import TASKS

NAME = "commands"
SHARE = 3
LIMIT_S = 60.0

# Seconds of computing after which a request must have been refused.
REFUSAL_S = 10.0
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
        ["compression", "length=4", "train_size=5"],
    ],
    "--model.layers": [
        ["lstm"],
        ["h_lru", "num_channels=3", "order=2", "gate=tanh", "backend=loop"],
        ["bd_lru", "num_blocks=1", "block_size=3", "gate=none", "lstm"],
    ],
    "--model.norm": [["layer"], ["none"]],
    "--model.channel-mixer": [["swiglu"], ["mlp", "intermediate_size=3"], ["none"]],
    "--batches.size": [["1"], ["1000"]],
    "--optimizer.learning-rate": [["1e-2"], ["1"]],
    "--evaluation.every": [["2"], ["2000000000"]],
    "--evaluation.lengths": [["5", "9"], []],
    "--seed": [["7"], ["9223372036854775807"]],
    "--model.layers.0.block_size": [["3"]],
    "--grid": [["seed=1,2"], ["optimizer.learning_rate=1e-3,1e-2", "seed=1"]],
}
_CORRUPT = (
    "", " ", "-1", "0", "1.5", "nan", "-inf", "1e400", "1" + "0" * 400, "2147483648", "1000000000",
    "9223372036854775808", "true", "none", "[]", "{}", '{"name": "lstm"}', "ü", "\x01", "a b", "=",
    "a=", "=b", "a=b", "--", "-x", "[" * 3000, "permutation", "lstm", "bd_lru", "x" * 5000,
    "num_blocks=2000000000", "block_size=100000", "length=16777217", "train_size=1000000000000",
    "train_size=-1", "group=S_9", "gate=nonsense", "seed=-1", "gate_temperature=nan",
    "gate_temperature=" + "9" * 400, "backend=cuda", "cuda", "/dev/null", "/", "1,2", "seed=1,1",
)  # fmt: skip
_OTHER_FLAGS = (
    "--nonsense", "--folder", "--config", "--from", "--grid", "--workers", "--imports",
    "--schedules.num-steps", "--model.layers.1.gate", "--model.layers.0.num_blocks",
    "--optimizer.weight-decay", "-h-", "-",
)  # fmt: skip
_LONG = ("--schedules.epochs", "--schedules.num-steps", "--model.hidden-size", "--length")
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


class Request(NamedTuple):
    """A command line, also without its corrupt parts, of each of which a message names a word."""

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
    began = sum(os.times()[:4])
    code, out, err = within(arguments, folder)
    seconds = sum(os.times()[:4]) - began
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


# Runs that diverged or failed, and files that cannot be written.
_DOCUMENTED = re.compile(r"must be finite|of \d+ runs: |runs have no result|\[Errno \d+\]")


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


def drawn(r: random.Random, folder: Path, prepared: Path) -> Request:
    if r.random() < 0.02:
        head = r.choice([[], ["--help"], ["--version"], ["trian"], ["train", "--help"]])
        return Request(head, [], head)
    command = r.choices([_train, _evaluate, _tasks], (6, 3, 3))[0]
    return command(r, folder, prepared)


def _corrupted(r: random.Random, head: list[str], flags: dict[str, list[str]]) -> Request:
    wrong = []
    sound = [*head, *words_of(flags)]
    for _ in range(r.choice([0, 1, 1, 1, 2, 3])):
        flag = r.choice([*flags, *flags, *_OTHER_FLAGS])
        value = r.choice(_CORRUPT)
        if flag in _LONG and value.isdecimal():
            continue  # Such a run is no mistake.
        keep = flags.get(flag, []) if r.random() < 0.5 else []
        flags[flag] = [*keep, value]
        field = flag.removeprefix("--").rpartition(".")[2].replace("-", "_")
        wrong.append([flag, field, value[:20], value.partition("=")[0], *keep])
    words = [(flag, *values) for flag, values in flags.items()]
    r.shuffle(words)
    arguments = [word for group in words for word in group]
    return Request([*head, *arguments], [] if "" in arguments else wrong, sound)


def _some(r: random.Random, choices: dict[str, list[list[str]]], most: int) -> dict[str, list[str]]:
    names = r.sample(list(choices), r.randint(0, min(most, len(choices))))
    return {name: list(r.choice(choices[name])) for name in names}


def _train(r: random.Random, folder: Path, prepared: Path) -> Request:
    flags = {name: list(values) for name, values in TINY.items()}
    given = r.random() < 0.3
    if given:
        flags = {"--config": [str(_file(r, folder, prepared))]}
    flags |= _some(r, _FITTING, 4)
    flags["--folder"] = [_target(r, folder)]
    request = _corrupted(r, ["train"], flags)
    # The file may be what is wrong.
    return request._replace(wrong=[]) if given else request


def _target(r: random.Random, folder: Path) -> str:
    """A folder for results: mostly a new one."""
    (folder / "file").write_text("text")
    odd = ["file", "file/run", "/dev/null/x", "/proc/x", "x" * 300, "", ".", "a\x01b"]
    return r.choice(odd) if r.random() < 0.15 else r.choice(["run", "new/run", "ü run"])


def _file(r: random.Random, folder: Path, prepared: Path) -> Path:
    """A configuration file, often damaged."""
    asked = json.loads((prepared / "run" / "config.json").read_text())["asked"]
    places = list(fields_of(asked))
    for tree, name in r.sample(places, r.choice([0, 1, 1, 2])):
        tree[name] = r.choice([*_CORRUPT, None, -1, 2**31, 10**400, 0.5, [], {}, [{}], True])
    text = json.dumps(asked)
    if r.random() < 0.2:
        place = r.randrange(len(text))
        text = text[:place] + r.choice(["", "{", '"', "9" * 50, "\0", "é"]) + text[place + 1 :]
    path = folder / "config.json"
    path.write_bytes(text.encode() if r.random() < 0.95 else b"\xff\xfe\x00" + text.encode())
    return path


def fields_of(tree):
    """(table, key) of every field of plain data."""
    entries = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for name, value in list(entries):
        yield tree, name
        if isinstance(value, dict | list):
            yield from fields_of(value)


def _evaluate(r: random.Random, folder: Path, prepared: Path) -> Request:
    shutil.copytree(prepared / "run", folder / "run")
    target = r.choice(["run", "run", "run", "run", "missing", "/dev/null", ""])
    return _corrupted(r, ["evaluate", target], _some(r, _EVALUATE, 4))


def _tasks(r: random.Random, folder: Path, prepared: Path) -> Request:
    head = [["tasks"], ["tasks", r.choice(list(TASKS))], ["tasks", "permutation", "length=3"]]
    return _corrupted(r, list(r.choice(head)), _some(r, _TASKS, 3))


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
