"""Two processes that write one folder: the second is refused in one line, and nothing is lost."""

import contextlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from statemix.cli.main import main
from statemix.errors import RequestError
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
    command = [sys.executable, "-c", HOLD, str(folder / ".lock")]
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
    for place in range(300):
        (tmp_path / "texts" / f"{place}.txt").write_text(f"text number {place}\n" * 20)
    (tmp_path / "results").mkdir()
    return tmp_path


# Command line -> the folder that it writes.
COMMANDS = {
    "train --folder new --task parity": "new",
    "train --folder run --extend": "run",
    "demo --output out": "out",
    "demo chess --output out": "out",
    "demo chess --form original --output out": "out",
    "demo cube --output out --fresh": "out",
    "certify run": "run",
    "certify run --output out": "out",
    "certify run --property rule": "run",
    "compile proven": "proven",
    "compile proven --output out": "out",
    "inspect run": "run/inspect",
    "inspect run --output out": "out",
    "report page --results results --output out/index.html": "out",
    f"report bench {RESULTS}/bench/figure3-f0bf39e.jsonl --output out": "out",
    "lm prepare texts --output out --tokenizer bytes": "out",
    "lm train --folder new": "new-tokens",
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_folder_in_use_is_refused_in_one_line(
    command, inputs, monkeypatch, tiny_arguments, capsys
):
    monkeypatch.chdir(inputs)
    monkeypatch.setattr(certificates.runs, "WRITING_S", 0.1)
    words = command.split()
    if "--extend" in words:
        words += [{"4": "9"}.get(word, word) for word in tiny_arguments]
    folder = Path(COMMANDS[command])
    with held(folder):
        before = contents(inputs)
        assert main(words) == 2
        assert capsys.readouterr().err.splitlines()[-1] == (
            f"statemix: another process is using {folder}"
        )
        assert contents(inputs) == before


def run_both(*words):
    """Run Python in two processes at once; return their exit codes and errors."""
    command = [sys.executable, *words]
    options = {"stderr": subprocess.PIPE, "stdout": subprocess.DEVNULL, "text": True}
    processes = [subprocess.Popen(command, **options) for _ in range(2)]
    said = [process.communicate(timeout=100)[1] for process in processes]
    return [(process.returncode, text) for process, text in zip(processes, said, strict=True)]


AT_ONCE = {
    "lm prepare texts --output out --tokenizer bytes": ("out/train.bin", 0),
    "train --folder new": ("new/summary.json", 0),
    "certify run": ("run/certificate.json", 1),
    "compile proven": ("proven/machine.npz", 0),
}


@pytest.mark.parametrize("command", AT_ONCE)
def test_two_at_once_end_well_or_in_one_line(command, inputs, monkeypatch, tiny_arguments):
    monkeypatch.chdir(inputs)
    words = command.split()
    words += tiny_arguments if words[0] == "train" else []
    file, done = AT_ONCE[command]
    found = run_both("-m", "statemix", *words)
    assert done in {code for code, _ in found}
    refusals = ("another process is using", "must not exist yet")
    for code, said in found:
        assert code == done or (code == 2 and any(words in said for words in refusals)), said
    assert Path(file).stat().st_size
    assert not list(inputs.rglob(".lock")) + list(inputs.rglob("*.tmp"))


def test_rows_of_two_evaluations_are_all_kept(inputs, monkeypatch):
    monkeypatch.chdir(inputs)
    words = ["evaluate", "run", "--lengths", *map(str, range(5, 25)), "--sequences", "1"]
    assert [code for code, _ in run_both("-m", "statemix", *words)] == [0, 0]
    rows = [json.loads(line) for line in Path("run/evaluations.jsonl").read_text().splitlines()]
    assert sorted(row["length"] for row in rows) == sorted([*range(5, 25)] * 2)


TAKE = """
import os, sys
from pathlib import Path
from statemix.training.folder import lock_folder
for _ in range(300):
    with lock_folder(Path(sys.argv[1]), patience_s=60):
        os.close(os.open(sys.argv[2], os.O_CREAT | os.O_EXCL))
        os.unlink(sys.argv[2])
"""


def test_a_lock_has_one_owner(tmp_path):
    """A folder that comes and goes, with two processes that want it again and again."""
    inside = tmp_path / "inside"
    assert run_both("-c", TAKE, str(tmp_path / "deep" / "folder"), str(inside)) == [(0, "")] * 2
    assert not list(tmp_path.rglob(".lock"))


def test_a_lock_leaves_what_others_have_made(tmp_path):
    with lock_folder(tmp_path / "folder"):
        (tmp_path / "folder" / "file").touch()
        with pytest.raises(FolderInUseError), lock_folder(tmp_path / "folder"):
            pass
    assert [path.name for path in (tmp_path / "folder").iterdir()] == ["file"]
    below = lock_folder(tmp_path / "folder" / "file" / "below", "output")
    with pytest.raises(RequestError, match=r"^output must be writable, got .*file/below"), below:
        pass
