"""What every test relies on: poisoned memory, fixed seeds, one thread."""

import functools
import importlib
import itertools
import os
import random
import shlex
import signal
import sys
from pathlib import Path

# Tests run side by side, one to a worker; their own subprocesses inherit this.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import hypothesis
import numpy as np
import pytest
import torch

from statemix import ops
from statemix.cli import doctor, main
from statemix.cli.parser import split_flags
from statemix.tasks import build as build_task

# On a machine without a compiler, processes that tests start may use the loop without a warning.
if ops.BACKENDS["cpu"].unavailable() is not None:
    os.environ.setdefault("PYTHONWARNINGS", "ignore:statemix uses the slow backend")

# The same examples on every run and every machine; no time limit per example on a busy one.
hypothesis.settings.register_profile(
    "statemix", derandomize=True, deadline=None, max_examples=40, database=None
)
hypothesis.settings.load_profile("statemix")


def _poison(allocate):
    """``allocate`` whose result is NaN (the least number for integers) instead of leftovers."""

    def poisoned(*arguments, **options):
        tensor = allocate(*arguments, **options)
        if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
            tensor.detach().fill_(float("nan"))
        elif tensor.dtype != torch.bool:
            tensor.detach().fill_(torch.iinfo(tensor.dtype).min)
        return tensor

    return poisoned


@pytest.fixture(scope="session", autouse=True)
def poisoned_memory():
    """Uninitialised memory shows: an entry that nothing wrote to is NaN.

    Only what Python allocates, which includes all that the compiled kernels write to. Once for the
    whole session, so that ``torch.compile`` always sees the same functions.
    """
    # torch.device lists the functions that it affects at its first use: let it find the true ones.
    with torch.device("meta"):
        torch.empty(0)
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in [
            (torch, "empty"),
            (torch, "empty_like"),
            (torch, "empty_strided"),
            (torch.Tensor, "new_empty"),
        ]:
            patch.setattr(owner, name, _poison(getattr(owner, name)))
        yield


@pytest.fixture(autouse=True)
def fixed_seeds():
    """Global generators and the number of threads are the same in every run and every order."""
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 - the global generator is what this is about
    torch.manual_seed(0)
    torch.set_num_threads(1)


def pytest_configure(config):
    """Results and times of a test should not depend on its neighbours."""
    torch.set_num_threads(1)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell that runs the tests in the background ignores Ctrl-C for all processes of tests.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if ops.BACKENDS["cpu"].unavailable() is not None:
        # Only the first call in a process warns, and any test may make it.
        config.addinivalue_line("filterwarnings", "ignore:statemix uses the slow backend")
    if os.environ.get("TRITON_INTERPRET") == "1":
        # NumPy computes what is not selected, too, and warns of it.
        config.addinivalue_line("filterwarnings", "ignore:.* encountered in:RuntimeWarning")


@functools.cache
def has_compiler():
    return doctor.examine()["compiler"] is not None


def pytest_collection_modifyitems(items):
    """Skip tests that need a compiler, or a backend that cannot run here, with the reason.

    A test names its backends by the parameter ``backend`` (or one that ends so), or it has the mark
    ``kernels``.
    """
    for item in items:
        if item.get_closest_marker("compiler") and not has_compiler():
            reason = "torch.compile needs a C++ compiler: install g++ or clang++"
            item.add_marker(pytest.mark.skip(reason=reason))
        for backend in backends_of(item):
            reason = backend.unavailable()
            if reason is not None:
                item.add_marker(pytest.mark.skip(reason=reason))


def backends_of(item):
    """Records of the backends that a test names."""
    arguments = item.callspec.params if hasattr(item, "callspec") else {}
    names = [value for name, value in arguments.items() if name.endswith("backend")]
    names += ["cpu"] if item.get_closest_marker("kernels") else []
    return [ops.BACKENDS[name] for name in sorted(set(names) & set(ops.BACKENDS))]


def runs_on(backend):
    """The type of the device on which a backend is tested: the CPU if it runs there."""
    return "cpu" if backend.devices is None or "cpu" in backend.devices else backend.devices[0]


@pytest.fixture
def device(request):
    """The device of the backend that the test names; the CPU if it names none."""
    return next((runs_on(backend) for backend in backends_of(request.node)), "cpu")


@pytest.fixture
def toys(monkeypatch):
    """The module of toys, imported as a user's module would be, and forgotten afterwards."""
    from statemix.layers import LAYERS
    from statemix.tasks import TASKS

    monkeypatch.syspath_prepend(Path(__file__).parent / "tests" / "toys")
    yield importlib.import_module("statemix_toys")
    for name in ("solver", "raising"):
        LAYERS.remove(name)
    TASKS.remove("ragged")
    sys.modules.pop("statemix_toys", None)


@pytest.fixture(scope="session")
def required_options(tmp_path_factory):
    """Task -> the options that it needs, such as a folder of stories in the format of bAbI."""
    folder = tmp_path_factory.mktemp("babi")
    draw = random.Random(0)
    for split, count in (("train", 400), ("valid", 300), ("test", 300)):
        lines = []
        for _ in range(count):
            names = draw.sample(["Mary", "John", "Daniel", "Sandra"], 3)
            places = [draw.choice(["kitchen", "garden", "office"]) for _ in names]
            for number, (who, where) in enumerate(zip(names, places, strict=True)):
                lines.append(f"{2 * number + 1} {who} went to the {where}.")
                asked = draw.randrange(number + 1)
                question = f"Where is {names[asked]}? \t{places[asked]}\t{2 * asked + 1}"
                lines.append(f"{2 * number + 2} {question}")
        (folder / f"qa1_{split}.txt").write_text("\n".join(lines) + "\n")
    traces = folder / "traces.txt"
    calls = ["open", "read/ok", "read/no", "close/ok", "close/no"]
    traces.write_text(
        "\n".join(" ".join([*draw.choices(calls, k=6), "end/ok"]) for _ in range(400))
    )
    return {
        "catbabi": {"folder": str(folder)},
        "traces": {"file": str(traces)},
        "automaton": {"rules": "start: even\neven 0 even\neven 1 odd\nodd 0 odd\nodd 1 even\n"},
        "regex": {"pattern": "(ab)*"},
    }


@pytest.fixture(scope="session")
def build(required_options):
    """Build a task by name, with the options that it needs."""

    def built(name, **options):
        if name == "chess":
            pytest.importorskip("chess", reason="games need python-chess")
        return build_task(name, **{**required_options.get(name, {}), **options})

    return built


TINY = shlex.split(
    """
    --task permutation group=S_3 length=5 train_size=20
    --model.layers bd_lru num_blocks=2 block_size=3 --model.hidden-size 8 --model.bos
    --batches.size 8 --schedules.epochs 4
    --evaluation.test-size 30 --evaluation.validation-size 20
    --runtime.num-threads 1 --runtime.device cpu
    """
)


@pytest.fixture(scope="session")
def tiny_arguments():
    """Function that returns the arguments of a run that takes a fraction of a second, changed."""

    def changed(*words):
        flags = [flag for flag, _ in split_flags(words)]
        kept = [(flag, *values) for flag, values in split_flags(TINY) if flag not in flags]
        return [*itertools.chain(*kept), *words]

    return changed


@pytest.fixture
def printed_by(capsys):
    """``printed_by(arguments)``: what a command line that succeeds writes to stdout."""

    def run(arguments):
        capsys.readouterr()
        assert main.main(arguments) == 0
        return capsys.readouterr().out

    return run


@pytest.fixture
def refused(capsys):
    """``refused(arguments, message)``: the command line refuses them by the last line of stderr."""

    def check(arguments, message):
        capsys.readouterr()
        assert main.main(arguments) == 2
        # Progress may come before it.
        last = capsys.readouterr().err.splitlines()[-1]
        assert message in last
        # A long argument is not repeated whole.
        assert len(last) < 1100

    return check


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory):
    """Folder of a finished run; do not write to it."""
    folder = tmp_path_factory.mktemp("runs") / "finished"
    assert main.main(["train", "--folder", str(folder), *TINY]) == 0
    return folder


@pytest.fixture
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
