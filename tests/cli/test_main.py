"""The dispatcher: exit codes, one line per error, and the flags that every command promises."""

import os
import re
import subprocess
import sys

import pytest

from statemix.cli import main as dispatcher
from statemix.cli.main import COMMANDS, main

FLAGS = {
    "train": """
        --folder --from --task --task-options --layer --layer-options --hidden-size --num-layers
        --bos --no-bos --residual --no-residual --norm --channel-mixer --learning-rate
        --learning-rates --weight-decay --weight-decays --betas --batch-size --epochs --num-steps
        --schedule --min-learning-rate
        --warmup-steps --clip-norm --sharpen-to --sharpen-start --sharpen-end --eval-every
        --test-size --validation-size --eval-lengths --eval-tokens --stop-at --precision --device
        --num-threads --seed
        """,
    "evaluate": "--lengths --weights --sequences --tokens --device --json",
    "tasks": "--task-options --split --start --count",
    "doctor": "--json",
    "demo": "--group --output --fresh",
    "bench ops": """
        --recurrences --shapes --block-sizes --orders --dtype --compiled --rounds --budget-s
        --threads --quick --output
        """,
}


def flags_of(help_text):
    # An entry begins with its flags, in a box where the terminal has the characters.
    entries = re.findall(r"^[│ ] (-.*?)(?:  |│|$)", help_text, re.MULTILINE)
    return {flag for entry in entries for flag in re.findall(r"--[a-z][a-z-]+", entry)} - {"--help"}


def test_every_command_promises_its_flags():
    assert {promise.split()[0] for promise in FLAGS} == COMMANDS.keys()


@pytest.mark.parametrize("command", FLAGS)
def test_flags_are_a_promise(command, capsys):
    assert main([*command.split(), "--help"]) == 0
    assert flags_of(capsys.readouterr().out) == set(FLAGS[command].split())


def test_help_lists_every_command(capsys):
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"\n  {name} " in text for name in COMMANDS)


def test_no_command_shows_the_help_as_an_error(capsys):
    assert main([]) == 2
    assert "usage: statemix COMMAND" in capsys.readouterr().out


def test_version_is_printed(capsys):
    assert main(["--version"]) == 0
    assert re.fullmatch(r"\d+\.\d+\.\d+\n", capsys.readouterr().out)


def test_help_imports_no_library_of_a_command():
    code = (
        "import sys; from statemix.cli import main; main.main(['--help']); "
        "sys.exit('tyro' in sys.modules or 'lightning_fabric' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_its_class_and_a_help(command, capsys):
    assert main([command, "--help"]) == 0
    assert f"usage: statemix {command}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["trian"],
            "command must be one of demo, train, evaluate, tasks, doctor, bench, got 'trian'",
        ),
        (["train", "--nonsense"], "--nonsense"),
        (["train", "--folder", "x", "--seed", "one"], "--seed"),
        (["train"], "--folder"),
        (["train", "--folder", "x", "--norm", "batch"], "--norm"),
        (["train", "--folder", "x", "--layer-options", "size"], "option=value"),
        (["evaluate"], "RUN"),
    ],
)
def test_wrong_request_is_named_on_stderr_with_exit_code_2(arguments, message, capsys):
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert printed.err.count("\n") == 1
    assert printed.out == ""


@pytest.fixture
def line_of(capsys, monkeypatch):
    """The one line that a command prints that fails with this error and exit code."""

    def run(error, code):
        class Failing:
            def run(self):
                raise error

        monkeypatch.setattr(dispatcher, "parse", lambda *_: Failing())
        assert main(["train"]) == code
        printed = capsys.readouterr().err
        assert printed.count("\n") == 1
        return printed

    return run


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ValueError("a\nb"), 2),
        (TypeError("a b"), 2),
        (PermissionError("a b"), 2),
        (OSError("a b"), 1),
        (FloatingPointError("a b"), 1),
        (RuntimeError("a b"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_errors_become_one_line_and_an_exit_code(error, code, line_of):
    printed = line_of(error, code)
    assert "Traceback" not in printed
    assert ("a b" in printed) != (code == 130)


FRAMES = "\nException raised from unpack at numbers.h:79 (most recent call first):\nframe #0: c10"


@pytest.mark.parametrize(
    ("error", "code", "shown"),
    [
        (TypeError(f"overflow{FRAMES}"), 2, "overflow"),
        (RuntimeError(f"overflow{FRAMES}"), 1, "overflow"),
        (RuntimeError("must train, got:\nZeroDivisionError"), 1, "must train, got: ZeroDivision"),
        (
            RuntimeError("Error(s) in loading:\n\tMissing key"),
            1,
            "Error(s) in loading: Missing key",
        ),
    ],
)
def test_frames_of_the_stack_are_left_out_but_no_reason_is(error, code, shown, line_of):
    printed = line_of(error, code)
    assert printed.startswith(f"statemix: {shown}")
    assert "frame" not in printed
    assert "raised from" not in printed


def test_a_size_beyond_any_integer_is_one_line_without_the_stack(tmp_path, capfd):
    arguments = ["--folder", str(tmp_path / "run"), "--hidden-size", str(10**27)]
    layer = ["--layer-options", "num_blocks=2", "block_size=2", "--num-steps", "1"]
    assert main(["train", *arguments, *layer]) == 2
    printed = capfd.readouterr().err
    assert printed.count("\n") == 1
    assert "frame #" not in printed


@pytest.mark.parametrize("command", COMMANDS)
def test_only_a_command_that_resumes_promises_to_go_on(command, capsys, monkeypatch):
    class Interrupted:
        def run(self):
            raise KeyboardInterrupt

    monkeypatch.setattr(dispatcher, "parse", lambda *_: Interrupted())
    assert main([command]) == 130
    advice = "; the same command goes on where it stopped" if command in ("demo", "train") else ""
    assert capsys.readouterr().err == f"statemix: interrupted{advice}\n"


@pytest.mark.parametrize("buffering", ["", "1"])
@pytest.mark.parametrize("arguments", [["--help"], ["tasks"], ["bench", "--help"]])
def test_output_that_is_lost_is_one_line_and_exit_code_1(arguments, buffering):
    command = [sys.executable, "-m", "statemix", *arguments]
    environment = os.environ | {"PYTHONUNBUFFERED": buffering}
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, env=environment
        )
    assert done.returncode == 1
    assert done.stderr == "statemix: [Errno 28] No space left on device: 'standard output'\n"


@pytest.mark.parametrize(
    ("encoding", "shown"), [("ascii", b"0.5 ? 0.9"), ("utf-8", "0.5 … 0.9".encode())]
)
def test_a_character_that_the_output_lacks_is_replaced(encoding, shown):
    code = (
        "import sys; from statemix.cli import main; "
        "main.COMMANDS['demo'] = ('Demo', '0.5 \\u2026 0.9'); sys.exit(main.main(['--help']))"
    )
    environment = os.environ | {"PYTHONIOENCODING": encoding}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, env=environment)
    assert (done.returncode, done.stderr) == (0, b"")
    assert shown in done.stdout


def test_a_backend_that_is_missing_is_a_wrong_request(capsys, monkeypatch):
    from statemix.ops import BackendUnavailableError

    def missing(*_):
        raise BackendUnavailableError("backend must be available; install it")

    monkeypatch.setattr(dispatcher, "parse", missing)
    assert main(["train"]) == 2
    assert capsys.readouterr().err == "statemix: backend must be available; install it\n"
