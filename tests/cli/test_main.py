"""The dispatcher: exit codes, one line per error, and the flags of every command."""

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
from statemix_lab.cli.bench import BENCHMARKS

FLAGS = {
    "train": """
        --folder --config --from --recipe --grid --workers --retry
        --extend --checkpoint-every-s
        --task --seed --imports --start-from
        --model.layers --model.num-layers --model.hidden-size --model.bos --model.no-bos
        --model.residual --model.no-residual --model.norm --model.channel-mixer
        --model.readout-sizes
        --model.zero-biases --model.no-zero-biases --model.backbone --model.linear-init
        --model.embedding-init
        --batches.size --batches.accumulate --batches.packed --batches.no-packed
        --optimizer.learning-rate --optimizer.weight-decay --optimizer.betas --optimizer.clip-norm
        --optimizer.groups --objective.position-power --objective.permutation-penalty
        --schedules.epochs --schedules.num-steps --schedules.learning-rate
        --schedules.min-learning-rate --schedules.warmup-steps --schedules.attributes
        --schedules.first-length --schedules.first-share
        --search.attempts --search.max-steps --search.plateau --search.every --search.tests
        --search.accept --search.accept-last --search.confirm --search.length --search.size
        --search.attributes
        --evaluation.every --evaluation.test-size --evaluation.validation-size
        --evaluation.lengths --evaluation.validation-lengths --evaluation.tokens
        --evaluation.stop-at --evaluation.attributes
        --runtime.precision --runtime.device --runtime.num-threads
        """,
    "evaluate": "--lengths --weights --sequences --tokens --device --output --json --imports",
    "inspect": """
        --layer --units --split --start --sequences --tokens --weights --output --json --imports
        """,
    "certify": "--soft --weights --max-pairs --property --output --json --imports",
    "compile": "--name --weights --output --imports",
    "tasks": "--split --start --count --imports",
    "doctor": "--check --json",
    "demo": "--group --moves --form --games --seed --output --fresh --retry",
    "reproduce": """
        --size --protocol --minutes --columns --models --dry-run --retry --workers
        --output --store --imports
        """,
    "report": "--results --json --output --imports",
    "bench ops": """
        --recurrences --shapes --block-sizes --orders --gate --dtype --providers --peers --chunks
        --compiled
        --rounds --budget-s --threads --device --graphs --limit-s --output
        """,
    "bench layers": """
        --layers --hidden-size --batch-size --length --compiled --projections --dtype --imports
        --rounds --budget-s --threads --device --graphs --limit-s --output
        """,
    "bench decode": """
        --recurrences --batch-sizes --hidden-sizes --block-sizes --peers --dtype
        --rounds --budget-s --threads --device --graphs --limit-s --output
        """,
    "bench language": """
        --size --models --contexts --memory-at --dtype
        --rounds --budget-s --threads --device --graphs --limit-s --output
        """,
    "lm prepare": "--output --tokenizer --field --suffixes --documents --held-out",
    "lm train": """
        --folder --tokens --size --layer --attention-every --conv-size --output-gate
        --hidden-size --num-layers --length --batch-size --accumulate --steps
        --learning-rate --weight-decay --evaluate-every --evaluate-bytes --precision --device
        --strategy --seed --checkpoint-every-s --extend --optimizer --compile --wandb
        --gradient-checkpointing --clip-norm --warmup-share --min-learning-rate
        --sequence-parallel --imports
        """,
    "lm generate": "--max-new-tokens --temperature --top-k --seed --imports",
    "lm evaluate": "--tokens --most-bytes --json --imports",
}


def flags_of(help_text):
    # An entry begins with its flags; a box surrounds it if the terminal has the characters.
    entries = re.findall(r"^[│ ] (-.*?)(?:  |│|$)", help_text, re.MULTILINE)
    return {flag for entry in entries for flag in re.findall(r"--[a-z][a-z.-]+", entry)} - {
        "--help"
    }


def test_every_command_promises_its_flags():
    assert {promise.split()[0] for promise in FLAGS} == commands().keys()
    assert {f"bench {name}" for name in BENCHMARKS} <= FLAGS.keys()


@pytest.mark.parametrize("command", FLAGS)
def test_flags_are_a_promise(command, capsys):
    assert main([*command.split(), "--help"]) == 0
    assert flags_of(capsys.readouterr().out) == set(FLAGS[command].split())


def test_help_lists_every_command(capsys):
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"\n  {name} " in text for name in commands())


def test_no_command_shows_the_help_as_an_error(capsys):
    assert main([]) == 2
    assert "usage: statemix COMMAND" in capsys.readouterr().out


def test_version_is_printed(capsys):
    assert main(["--version"]) == 0
    assert re.fullmatch(r"\d+\.\d+\.\d+\n", capsys.readouterr().out)


def test_help_and_completion_import_no_library_of_a_command():
    """In an environment where none of them can be imported."""
    code = (
        "import sys\n"
        "for name in ('torch', 'numpy', 'pydantic', 'rich', 'lightning_fabric', 'transformers'):\n"
        "    sys.modules[name] = None\n"
        "from statemix.cli import main\n"
        f"commands = [[], *map(str.split, {[*FLAGS]})]\n"
        "for words in commands:\n"
        "    for flag in ('--help', '-h'):\n"
        "        assert main.main([*words, flag]) == 0, words\n"
        "assert main.main(['--complete']) == 0"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_stored_help_is_that_of_the_commands():
    for path, texts in help_text.texts_of_files().items():
        assert json.loads(path.read_text()) == texts, "run: python -m statemix.cli.help_text"


@pytest.mark.parametrize(("command", "parts"), [("lm", LANGUAGE_PARTS), ("bench", BENCHMARKS)])
def test_help_has_a_line_for_each_subcommand(command, parts, capsys):
    assert main([command, "--help"]) == 0
    text = capsys.readouterr().out
    assert all(re.search(rf"^  {name} +[A-Z].+\.$", text, re.MULTILINE) for name in parts)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("statemix d", ["demo", "doctor"]),
        ("statemix lm ", ["--help", "evaluate", "generate", "prepare", "train"]),
        ("statemix doctor --", ["--check", "--help", "--json"]),
        ("statemix lm train --t", ["--tokens"]),
        ("statemix lm train --folder runs/x --t", ["--tokens"]),
        ("statemix nothing --", []),
    ],
)
def test_words_are_completed(line, expected, capsys, monkeypatch):
    monkeypatch.setenv("COMP_LINE", line)
    assert main(["--complete", "statemix", "", ""]) == 0
    assert capsys.readouterr().out.split() == expected


@pytest.mark.parametrize("command", commands())
def test_every_command_has_its_class_and_a_help(command, capsys):
    assert main([command, "--help"]) == 0
    assert f"usage: statemix {command}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["trian"],
            "command must be one of train, evaluate, certify, compile, tasks, doctor, lm, bench, "
            "demo, inspect, report, reproduce, got 'trian'; did you mean 'train'?",
        ),
        (["train", "--nonsense"], "--nonsense"),
        (["train", "--folder", "x", "--seed", "one"], "seed must be a valid integer"),
        (["train"], "--folder"),
        (["train", "--folder", "x", "--model.norm", "batch"], "model.norm must be 'rms'"),
        (["train", "--folder", "x", "--evaluation.attributes", "size"], "option=value"),
        (["evaluate"], "RUN"),
        (
            ["train", "--folder", "a\0b"],
            r"--folder: a path must be neither empty nor with a null byte, got 'a\x00b'",
        ),
        (
            ["report", "bench", ""],
            "[FILE ...]: a path must be neither empty nor with a null byte, got ''",
        ),
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
    """Return the only line printed by a command that fails with this error and exit code."""

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
        (RequestError("a\nb"), 2),
        (PermissionError("a b"), 2),
        (OSError("a b"), 1),
        (FloatingPointError("a b"), 1),
        (RunsFailedError("a b"), 1),
        (MemoryError("a b"), 1),
        (RuntimeError("a b: DefaultCPUAllocator: can't allocate memory"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_errors_become_one_line_and_an_exit_code(error, code, line_of):
    printed = line_of(error, code)
    assert "Traceback" not in printed
    assert ("a b" in printed) != (code == 130)


class _Failing:
    def __init__(self, error):
        self.error = error

    def run(self):
        raise self.error


@pytest.mark.parametrize("error", [ValueError("a"), TypeError("a"), RuntimeError("a"), KeyError()])
def test_a_defect_is_not_caught(error, monkeypatch):
    monkeypatch.setattr(dispatcher, "parse", lambda *_: _Failing(error))
    with pytest.raises(type(error)):
        main(["train"])


def test_a_defect_keeps_its_traceback_and_ends_with_exit_code_1():
    code = (
        "from statemix.cli import main\n"
        "class Failing:\n"
        "    def run(self): raise ValueError('a')\n"
        "main.parse = lambda *_: Failing()\n"
        "main.sys.exit(main.main(['train']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "ValueError: a" in done.stderr


def test_frames_of_the_stack_are_left_out_but_no_reason_is(line_of):
    frames = "\nException raised from f at n.h:79 (most recent call first):\nframe #0: c10"
    printed = line_of(MemoryError(f"{10**12} bytes:\n\tno{frames}"), 1)
    assert printed == f"statemix: out of memory: {10**12} bytes: no\n"


def test_a_size_beyond_memory_is_one_line_that_names_the_field(tmp_path, capfd):
    arguments = ["--folder", str(tmp_path / "run"), "--model.hidden-size", str(10**27)]
    assert main(["train", *arguments, "--schedules.num-steps", "1"]) == 2
    printed = capfd.readouterr().err
    assert printed.count("\n") == 1
    assert "model.hidden_size must be less than or equal to" in printed
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("attributes", "promises"),
    [({}, False), ({"resumes": True}, True), ({"resumes": True, "dry_run": True}, False)],
)
def test_only_a_command_that_resumes_promises_to_continue(
    attributes, promises, capsys, monkeypatch
):
    command = type("Interrupted", (_Failing,), attributes)(KeyboardInterrupt())
    monkeypatch.setattr(dispatcher, "parse", lambda *_: command)
    assert main(["tasks"]) == 130
    advice = "; repeat the command to resume" if promises else ""
    assert capsys.readouterr().err == f"statemix: interrupted{advice}\n"


def test_the_commands_that_resume():
    kinds = [*LANGUAGE_PARTS.values(), *BENCHMARKS.values(), Train]
    kinds += [EntryPoint(name, place, GROUP).load() for name, place in commands().items()]
    resuming = {kind.__name__ for kind in kinds if getattr(kind, "resumes", False)}
    assert resuming == {"Train", "TrainText", "Demo", "Reproduce"}


@pytest.mark.parametrize(
    ("arguments", "buffering"), [(["--help"], ""), (["tasks"], "1"), (["bench", "--help"], "")]
)
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
        "main._HELP = '0.5 \\u2026 0.9 {commands}'; "
        "sys.exit(main.main(['--help']))"
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


def test_help_ends_on_a_terminal_of_any_width():
    code = (
        "import os; from statemix.cli import main\n"
        "for os.environ['COLUMNS'] in ('1', '4', '39'):\n"
        "    for command in ('train', 'tasks'):\n"
        "        assert main.main([command, '--help']) == 0"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.count("usage: statemix") == 6


def test_a_closed_output_is_one_line_and_exit_code_1():
    shell = [sys.executable, "-m", "statemix", "tasks"]
    done = subprocess.run(["sh", "-c", '"$@" >&-', "sh", *shell], stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert done.stderr == "statemix: standard output is closed\n"


def test_ctrl_c_during_imports_is_one_line_and_exit_code_130():
    code = (
        "import sys\n"
        "class Interrupting:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'torch': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupting())\n"
        "from statemix.cli.main import main\n"
        "sys.exit(main(['tasks']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 130
    assert done.stderr == "statemix: interrupted\n"


@pytest.mark.parametrize(
    ("package", "library"),
    [
        ("statemix.cli.main", "torch"),
        ("statemix.cli.main", "importlib.metadata"),
        ("statemix.training", "torch._dynamo"),
    ],
)
def test_no_import_of_the_package_waits_for_a_large_library(package, library):
    code = (
        f"import sys; before = {{*sys.modules}}; import statemix, {package}; "
        f"sys.exit({library!r} in sys.modules.keys() - before)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


def test_sigterm_anywhere_in_a_command_is_an_interrupt():
    code = (
        "import os, signal, sys\n"
        "from statemix.cli import main\n"
        "class Terminated:\n"
        "    def run(self): os.kill(os.getpid(), signal.SIGTERM)\n"
        "main.parse = lambda *_: Terminated()\n"
        "sys.exit(main.main(['tasks']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "statemix: interrupted\n")


@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM"])
def test_an_interrupt_that_a_finalizer_swallows_comes_again(number):
    code = (
        "import os, signal, sys, time\n"
        "from statemix.cli import main\n"
        "class Deaf:\n"
        f"    def __del__(self): signal.raise_signal(signal.{number})\n"
        "class Odd:\n"
        "    def __del__(self): raise ValueError('odd')\n"
        "class Command:\n"
        "    def run(self):\n"
        "        Odd()\n"
        "        Deaf()\n"
        "        time.sleep(20)\n"
        "main.parse = lambda *_: Command()\n"
        "sys.exit(main.main(['tasks']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=15)
    assert done.returncode == 130
    assert done.stderr.endswith("statemix: interrupted\n")
    # Other errors of finalizers are reported as ever.
    assert done.stderr.count("Traceback") == done.stderr.count("ValueError: odd") == 1


def test_a_long_argument_is_not_repeated_whole(capsys):
    assert main(["doctor", "x" * 5000]) == 2
    error = capsys.readouterr().err
    assert len(error) < 1100
    assert error.endswith("see statemix doctor --help\n")


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        ("bench layers --x", "; see statemix bench layers --help\n"),
        ("bench", "; see statemix bench --help\n"),
        ("bench layer", "; did you mean 'layers'?\n"),
    ],
)
def test_an_error_names_the_help_that_lists_the_options(words, advice, capsys):
    assert main(words.split()) == 2
    assert capsys.readouterr().err.endswith(advice)


def test_a_reader_that_has_read_enough_is_not_told_of_a_broken_pipe():
    shell = f"{sys.executable} -m statemix --help | head -1; exit 0"
    done = subprocess.run(["sh", "-c", shell], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("usage: statemix COMMAND [OPTIONS]\n", "")


@pytest.mark.parametrize(
    ("name", "missing", "extra"),
    [
        ("train", "pydantic", "train"),
        ("lm", "transformers", "lm"),
        ("lm", "rich", "lm"),
    ],
)
def test_a_missing_package_names_the_extra_that_brings_it(
    name, missing, extra, capsys, monkeypatch
):
    def find(package):
        if package == missing:
            raise metadata.PackageNotFoundError(package)

    asked = [
        'torch>=2', 'pydantic>=2; extra == "train"', 'rich>=13; extra == "train"',
        'statemix[train]; extra == "lm"', 'transformers>=5; extra == "lm"',
    ]  # fmt: skip
    monkeypatch.setattr(metadata, "requires", lambda _: asked)
    monkeypatch.setattr(metadata, "version", find)
    assert main([name]) == 2
    wanted = f"{name} needs {missing}: pip install 'statemix[{extra}]'"
    assert capsys.readouterr().err == f"statemix: {wanted}\n"


@pytest.mark.parametrize("module", ["transformers", "tokenizers", "chess", "triton"])
def test_a_package_that_a_part_of_a_command_lacks_is_named_with_its_extra(
    module, capsys, monkeypatch
):
    """`bench language` and `reproduce fig4` need transformers, which `bench ops` does not."""
    extras = {
        "transformers": "statemix[lm]",
        "tokenizers": "statemix[lm]",
        "chess": "statemix-lab[chess]",
        "triton": "statemix[gpu]",
    }

    def run(command):
        raise ModuleNotFoundError(f"No module named '{module}.x'", name=f"{module}.x")

    monkeypatch.setattr("statemix.cli.tasks.Tasks.run", run)
    assert main(["tasks"]) == 2
    wanted = f"this command needs {module}: pip install '{extras[module]}'"
    assert capsys.readouterr().err == f"statemix: {wanted}\n"


def test_a_module_of_no_extra_keeps_its_traceback(monkeypatch):
    def run(command):
        raise ModuleNotFoundError("No module named 'nowhere'", name="nowhere")

    monkeypatch.setattr("statemix.cli.tasks.Tasks.run", run)
    with pytest.raises(ModuleNotFoundError):
        main(["tasks"])


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["trian"], "train"),
        (["train", "--folder", "x", "--optimizer.lr", "1"], "learning_rate"),
        (["train", "--folder", "x", "--task", "permuation"], "permutation"),
        (["train", "--folder", "x", "--model.layers", "bdlru"], "bd_lru"),
        (["train", "--folder", "x", "--model.layers", "bd_lru", "num_block=2"], "num_blocks"),
        (["train", "--folder", "x", "--model.layers.0.gate", "Softmax"], "softmax"),
        (["train", "--folder", "x", "--model.norm", "RMS"], "rms"),
        (["train", "--foldr", "x"], "--folder"),
        (["evaluate", "x", "--length", "5"], "--lengths"),
        (["bench", "layer"], "layers"),
    ],
)
def test_the_name_that_was_meant_is_suggested(arguments, meant, capsys):
    assert main(arguments) == 2
    assert capsys.readouterr().err.endswith(f"; did you mean {meant!r}?\n")
