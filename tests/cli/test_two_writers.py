"""Two processes that write one folder: the second is refused in one line, and nothing is lost."""

import contextlib
import multiprocessing
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from statemix.cli.main import main
from statemix.errors import RequestError
from statemix.files import append
from statemix.training import certificates
from statemix.training.folder import FolderInUseError, lock_folder

RESULTS = Path(__file__).parents[2] / "laboratory" / "results"
HOLD = """
import sys
from filelock import FileLock
with FileLock(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def held(folder):
    """Let another process hold the lock of a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-c", HOLD, str(folder / ".statemix.lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"held\n"
        yield
        process.stdin.close()


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def inputs(tmp_path, finished_run):
    """A folder with all that commands read: a run, a certificate, a property, texts."""
    shutil.copytree(finished_run, tmp_path / "run")
    (tmp_path / "proven").mkdir()
    shutil.copy(RESULTS / "certificates" / "S_3.json", tmp_path / "proven" / "certificate.json")
    (tmp_path / "rule").write_text("start: a\nbad: b\na * * b\nb * * b\n")
    (tmp_path / "texts").mkdir()
    for place in range(20):
        (tmp_path / "texts" / f"{place}.txt").write_text(f"text number {place}\n")
    (tmp_path / "results").mkdir()
    return tmp_path


# Command line -> the folder that it writes.
COMMANDS = {
    "train --folder new --task parity": "new",
    "train --folder run --extend": "run",
    "demo --output out": "out",
    "demo cube --output out --fresh": "out",
    "certify run": "run",
    "certify run --property rule --output out": "out",
    "compile proven": "proven",
    "compile proven --output out": "out",
    "inspect run": "run/inspect",
    "report page --results results --output out/index.html": "out",
    f"report bench {RESULTS}/bench/figure3-f0bf39e.jsonl --output out": "out",
    "lm prepare texts --output out --tokenizer bytes": "out",
    "lm train --folder new": "new-tokens",
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_folder_in_use_is_refused(command, inputs, monkeypatch, tiny_arguments, capsys):
    monkeypatch.chdir(inputs)
    monkeypatch.setattr(certificates.runs, "WRITING_S", 0.1)
    words = command.split()
    if "--extend" in words:
        words += tiny_arguments("--schedules.epochs", "9")
    folder = Path(COMMANDS[command])
    with held(folder):
        before = contents(inputs)
        assert main(words) == 2
        assert capsys.readouterr().err.splitlines()[-1] == (
            f"statemix: another process is using {folder}"
        )
        assert contents(inputs) == before


def run_both(function, *arguments):
    """Call a function in two processes at once; return their exit codes."""
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=function, args=arguments) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(100)
    return [process.exitcode for process in processes]


def _train(words):
    sys.exit(main(words))


def test_two_at_once_end_well_or_are_refused(tmp_path, tiny_arguments):
    codes = run_both(_train, ["train", "--folder", str(tmp_path / "new"), *tiny_arguments()])
    assert 0 in codes
    assert {0, 2} >= {*codes}
    assert (tmp_path / "new" / "summary.json").stat().st_size
    assert not [*tmp_path.rglob(".statemix.lock"), *tmp_path.rglob("*.tmp")]


def _append(path):
    for number in range(200):
        append(path, f"row {number}\n")


def test_rows_of_two_processes_are_all_kept(tmp_path):
    assert run_both(_append, tmp_path / "rows") == [0, 0]
    rows = (tmp_path / "rows").read_text().splitlines()
    assert sorted(rows) == sorted([f"row {number}" for number in range(200)] * 2)


def _take(folder, inside):
    for _ in range(300):
        with lock_folder(folder, patience_s=60):
            os.close(os.open(inside, os.O_CREAT | os.O_EXCL))
            os.unlink(inside)


def test_a_lock_has_one_owner(tmp_path):
    """A folder that comes and goes, with two processes that want it again and again."""
    assert run_both(_take, tmp_path / "deep" / "folder", tmp_path / "inside") == [0, 0]
    assert not list(tmp_path.rglob(".statemix.lock"))


def test_a_lock_outlives_a_folder_that_goes_while_it_is_made(tmp_path, monkeypatch):
    """mkdir finds the folder of another process, which removes the folder at once."""
    make, refused = os.mkdir, []

    def find_once(path, *arguments):
        if not refused:
            refused.append(path)
            raise FileExistsError(path)
        make(path, *arguments)

    monkeypatch.setattr(os, "mkdir", find_once)
    with lock_folder(tmp_path / "folder"):
        assert refused == [tmp_path / "folder"]


def test_a_lock_leaves_what_others_have_made(tmp_path):
    with lock_folder(tmp_path / "folder"):
        (tmp_path / "folder" / "file").touch()
        with pytest.raises(FolderInUseError), lock_folder(tmp_path / "folder"):
            pass
    assert [path.name for path in (tmp_path / "folder").iterdir()] == ["file"]
    below = lock_folder(tmp_path / "folder" / "file" / "below", "output")
    with pytest.raises(RequestError, match=r"^output must be writable, got .*file/below"), below:
        pass
