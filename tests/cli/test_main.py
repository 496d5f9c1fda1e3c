"""The dispatcher: exit codes, one line per error, help and completion."""

import json
import os
import re
import subprocess
import sys
from importlib import metadata
from importlib.metadata import EntryPoint

import pytest

from statemix.cli import help_text
from statemix.cli import main as dispatcher
from statemix.cli.commands import GROUP, commands
from statemix.cli.lm import PARTS as LANGUAGE_PARTS
from statemix.cli.main import main
from statemix.cli.train import Train
from statemix.errors import RequestError, RunsFailedError
from statemix.ops import BackendUnavailableError
from statemix_lab.cli.bench import BENCHMARKS

PARTS = {"lm": LANGUAGE_PARTS, "bench": BENCHMARKS}


def run_python(code, **options):
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def test_version_and_help(capsys):
    assert main(["--version"]) == 0
    assert re.fullmatch(r"\d+\.\d+\.\d+\n", capsys.readouterr().out)
    for words, code in ((["--help"], 0), ([], 2)):
        assert main(words) == code
        text = capsys.readouterr().out
        assert all(f"\n  {name} " in text for name in commands())


def test_help_and_completion_import_no_library_of_a_command():
    """In an environment where none of them can be imported, on terminals of any width."""
    names = [*commands(), *(f"{name} {part}" for name in PARTS for part in PARTS[name])]
    code = (
        "import os, sys\n"
        "for name in ('torch', 'numpy', 'pydantic', 'rich', 'lightning_fabric', 'transformers'):\n"
        "    sys.modules[name] = None\n"
        "from statemix.cli.main import main\n"
        f"for words in map(str.split, {names}):\n"
        "    for flag, os.environ['COLUMNS'] in (('--help', '1'), ('-h', '39')):\n"
        "        assert main([*words, flag]) == 0, words\n"
        "assert main(['--complete']) == 0"
    )
    done = run_python(code, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("usage: statemix") == 2 * len(names)


def test_stored_help_is_that_of_the_commands(printed_by):
    files = help_text.texts_of_files()
    for path, texts in files.items():
        assert json.loads(path.read_text()) == texts, "run: python -m statemix.cli.help_text"
    texts = {name: text for texts in files.values() for name, text in texts.items()}
    assert {name.split()[0] for name in texts} == commands().keys()
    for command, parts in PARTS.items():
        text = printed_by([command, "--help"])
        assert f"usage: statemix {command}" in text
        assert all(re.search(rf"^  {name} +[A-Z].+\.$", text, re.MULTILINE) for name in parts)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("statemix d", ["demo", "doctor"]),
        ("statemix lm ", ["--help", "evaluate", "generate", "prepare", "train"]),
        ("statemix doctor --", ["--check", "--help", "--json"]),
        ("statemix lm train --folder runs/x --t", ["--tokens"]),
        ("statemix nothing --", []),
    ],
)
def test_words_are_completed(line, expected, capsys, monkeypatch):
    monkeypatch.setenv("COMP_LINE", line)
    assert main(["--complete", "statemix", "", ""]) == 0
    assert capsys.readouterr().out.split() == expected


TRAIN = ["train", "--folder", "x"]
BAD_PATH = "a path must be neither empty nor with a null byte, got"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trian"], "reproduce, got 'trian'; did you mean 'train'?"),
        ([*TRAIN, "--seed", "one"], "seed must be a valid integer"),
        (["train"], "--folder"),
        ([*TRAIN, "--evaluation.attributes", "size"], "option=value"),
        (["evaluate"], "RUN"),
        (["train", "--folder", "a\0b"], rf"--folder: {BAD_PATH} 'a\x00b'"),
        (["report", "bench", ""], f"[FILE ...]: {BAD_PATH} ''"),
        (["bench", "layers", "--x"], "; see statemix bench layers --help"),
        (["doctor", "x" * 5000], "see statemix doctor --help"),
        ([*TRAIN, "--optimizer.lr", "1"], "; did you mean 'learning_rate'?"),
        ([*TRAIN, "--model.layers", "bd_lru", "num_block=2"], "; did you mean 'num_blocks'?"),
        ([*TRAIN, "--model.layers.0.gate", "Softmax"], "; did you mean 'softmax'?"),
        (["train", "--foldr", "x"], "; did you mean '--folder'?"),
        (["bench", "layer"], "; did you mean 'layers'?"),
        ([*TRAIN, "--model.hidden-size", str(10**27)], "model.hidden_size must be less than"),
    ],
)
def test_wrong_request_is_named_on_stderr_with_exit_code_2(arguments, message, refused):
    refused(arguments, message)


def failing(monkeypatch, error, **attributes):
    """Let every command fail with an error."""

    def run(command):
        raise error

    command = type("Failing", (), {"run": run, **attributes})()
    monkeypatch.setattr(dispatcher, "parse", lambda *_: command)


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (RequestError("a\nb"), 2, "a b"),
        (BackendUnavailableError("a b"), 2, "a b"),
        (PermissionError("a b"), 2, "a b"),
        (OSError("a b"), 1, "a b"),
        (FloatingPointError("a b"), 1, "a b"),
        (RunsFailedError("a b"), 1, "a b"),
        (
            # Frames of C++ are left out, but no reason is.
            MemoryError(f"{10**12} bytes:\n\tno\nException raised from f at n.h:79:\nframe #0: c"),
            1,
            f"out of memory: {10**12} bytes: no",
        ),
        (
            RuntimeError("a b: DefaultCPUAllocator: can't allocate memory"),
            1,
            "out of memory: a b: DefaultCPUAllocator: can't allocate memory",
        ),
        (KeyboardInterrupt(), 130, "interrupted"),
        # It needs a package that an extra brings.
        (
            ModuleNotFoundError(name="chess.x"),
            2,
            "train needs chess: pip install 'statemix-lab[chess]'",
        ),
    ],
)
def test_errors_become_one_line_and_an_exit_code(error, code, said, capsys, monkeypatch):
    failing(monkeypatch, error)
    assert main(["train"]) == code
    assert capsys.readouterr().err == f"statemix: {said}\n"


def test_the_extra_of_language_models_brings_what_training_needs(capsys, monkeypatch):
    failing(monkeypatch, ModuleNotFoundError(name="rich"))
    assert main(["lm"]) == 2
    assert capsys.readouterr().err == "statemix: lm needs rich: pip install 'statemix[lm]'\n"


def test_a_command_of_the_laboratory_names_its_distribution(refused, monkeypatch):
    monkeypatch.setattr(metadata, "entry_points", lambda **_: [])
    refused(["demo"], "demo comes with statemix-lab")


@pytest.mark.parametrize(
    "error", [ValueError("a"), RuntimeError("a"), KeyError(), ModuleNotFoundError(name="nowhere")]
)
def test_a_defect_is_not_caught(error, monkeypatch):
    failing(monkeypatch, error)
    with pytest.raises(type(error)):
        main(["train"])


@pytest.mark.parametrize(
    ("attributes", "promises"),
    [({}, False), ({"resumes": True}, True), ({"resumes": True, "dry_run": True}, False)],
)
def test_only_some_commands_promise_to_continue(attributes, promises, capsys, monkeypatch):
    failing(monkeypatch, KeyboardInterrupt(), **attributes)
    assert main(["tasks"]) == 130
    advice = "; repeat the command to resume" if promises else ""
    assert capsys.readouterr().err == f"statemix: interrupted{advice}\n"


def test_the_commands_that_resume():
    kinds = [*LANGUAGE_PARTS.values(), *BENCHMARKS.values(), Train]
    kinds += [EntryPoint(name, place, GROUP).load() for name, place in commands().items()]
    resuming = {kind.__name__ for kind in kinds if getattr(kind, "resumes", False)}
    assert resuming == {"Learn", "Train", "TrainText", "Demo", "Reproduce"}


@pytest.mark.parametrize(
    ("shell", "code", "out", "err"),
    [
        ("PYTHONUNBUFFERED=1 {} --help > /dev/full", 1, "", "No space left on device: 'standard"),
        ("{} lm --help > /dev/full", 1, "", "[Errno 28] No space left on device: 'standard output"),
        ("{} tasks >&-", 1, "", "statemix: standard output is closed\n"),
        # A reader that has read enough is not told of a broken pipe.
        ("{} --help | head -1; exit 0", 0, "usage: statemix COMMAND [OPTIONS]\n", ""),
    ],
)
def test_output_that_is_lost_is_one_line_and_exit_code_1(shell, code, out, err):
    command = shell.format(f"{sys.executable} -m statemix")
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (code, out)
    assert err in done.stderr
    assert done.stderr.count("\n") == bool(err)


def test_a_character_that_the_output_lacks_is_replaced():
    code = (
        "from statemix.cli import main\n"
        "main._HELP = '0.5 \\u2026 0.9 {commands}'\n"
        "main.main(['--help'])"
    )
    done = run_python(code, env=os.environ | {"PYTHONIOENCODING": "ascii"})
    assert done.stderr == ""
    assert "0.5 ? 0.9" in done.stdout


IMPORTED = """
import sys
class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == 'torch': raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupting())
"""
SWALLOWED = """
import signal, time
class Deaf:
    def __del__(self): signal.raise_signal(signal.SIGTERM)
class Odd:
    def __del__(self): raise ValueError('odd')
class Command:
    def run(self):
        Odd()
        Deaf()
        time.sleep(20)
main.parse = lambda *_: Command()
"""


@pytest.mark.parametrize(("code", "errors"), [(IMPORTED, 0), (SWALLOWED, 1)])
def test_an_interrupt_anywhere_is_one_line_and_exit_code_130(code, errors):
    """During an import, or in a finalizer, where Python drops it: it comes again."""
    before = "import sys; from statemix.cli import main\n"
    done = run_python(f"{before}{code}\nsys.exit(main.main(['tasks']))", timeout=60)
    assert done.returncode == 130
    assert done.stderr.endswith("statemix: interrupted\n")
    # Other errors of finalizers are reported as ever.
    assert done.stderr.count("Traceback") == done.stderr.count("ValueError: odd") == errors


@pytest.mark.parametrize(
    ("package", "libraries"),
    [
        ("statemix.cli.main", {"torch", "importlib.metadata"}),
        ("statemix.training", {"torch._dynamo"}),
    ],
)
def test_no_import_of_the_package_waits_for_a_large_library(package, libraries):
    code = (
        f"import sys; before = {{*sys.modules}}; import statemix, {package}; "
        f"sys.exit(bool({libraries} & (sys.modules.keys() - before)))"
    )
    assert run_python(code).returncode == 0
