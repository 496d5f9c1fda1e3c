"""The command that looks for wrong words."""

import contextlib
import io
import json
import re
import shlex
import sys

import pytest
import torch
from torch import nn

from statemix.cli.main import main
from statemix.proofs import check_certificate

PARITY = "start: even\nodd a even\nodd b odd\neven a odd\neven b even\n"
TRAIN = shlex.split(
    """
    --task automaton length=8 train_size=40 --model.hidden-size 8 --batches.size 20
    --model.layers bd_lru num_blocks=2 block_size=2 --schedules.epochs 1
    --evaluation.test-size 4 --evaluation.validation-size 4 --runtime.device cpu
    """
)
MODELS = """
import torch

def parity(tokens):
    return 1 - tokens.eq(0).cumsum(1) % 2

def forgetful(tokens):
    found = parity(tokens)
    found[:, 40:] = 0
    return found

def broken(tokens):
    return torch.zeros(*tokens.shape, 2) / 0

def narrow(tokens):
    return torch.zeros(*tokens.shape, 1)

def make():
    return parity

def make_one(width=4):
    return parity

def wrapped(*tokens):
    return parity(*tokens)

wrapped.__wrapped__ = lambda tokens, width: None

class Reader:
    def step(self, tokens, state):
        state = torch.ones_like(tokens) if state is None else state
        state = torch.where(tokens == 0, 1 - state, state)
        return torch.stack([1.0 - state, state], 1), state

reader = Reader()
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "rules.txt").write_text(PARITY)
    (tmp_path / "mymodels.py").write_text(MODELS)
    yield tmp_path
    sys.modules.pop("mymodels", None)


def refute(capsys, *words):
    code = main(["refute", *map(str, words)])
    return code, capsys.readouterr()


def word_of(row):
    """The letters of a word u v^n w."""
    parts = row["word"]
    return [*parts["before"], *parts["loop"] * parts["times"], *parts["after"]]


def rows(capsys, *words):
    code, said = refute(capsys, *words, "--json")
    return code, json.loads(said.out)


def test_a_wrong_function_is_refuted_and_replayed(capsys, folder):
    code, said = refute(capsys, "mymodels:forgetful", "--automaton", "rules.txt")
    assert (code, said.err) == (1, "statemix: mymodels:forgetful is wrong after 41 letters\n")
    lines = said.out.splitlines()
    assert lines[0] == "refuted: wrong after 41 letters, and right before"
    # The answers are the names of the states, which odd begins.
    assert "  answer   odd after this word, where even is right" in lines
    assert lines[-1] == "written: refutation.json"
    assert "              32-63  " in said.out
    stored = json.loads((folder / "refutation.json").read_text())
    word = word_of(stored)
    assert len(word) == stored["position"] == 41
    assert word.count("a") % 2 == 0
    assert (stored["answer"], stored["expected"], stored["margins"]) == ("odd", "even", None)
    assert stored["letters"] == ["a", "b"]
    assert check_certificate.main("refutation.json") == 1
    assert "refuted: 1 is right after 41 letters, the network said 0" in capsys.readouterr().out
    code, said = refute(capsys, "mymodels:broken", "--automaton", "rules.txt")
    assert (code, json.loads((folder / "refutation.json").read_text())) == (2, stored)
    assert "refutation.json holds a refutation of mymodels:forgetful; choose" in said.err
    (folder / "empty.json").touch()
    for path in ("refutation.json", "empty.json"):
        code, _ = refute(capsys, "mymodels:broken", "--automaton", "rules.txt", "--output", path)
        assert (code, json.loads((folder / path).read_text())["model"]) == (1, "mymodels:broken")
    (folder / "refutation.json").write_text(json.dumps(stored))
    code, said = refute(capsys, "mymodels:forgetful", "--replay", "refutation.json")
    assert code == 1
    assert said.out.startswith("refuted: wrong after 41 letters")
    code, said = refute(capsys, "mymodels:parity", "--replay", "refutation.json")
    assert code == 0
    assert said.out == "not refuted by this word of 41 letters\n"


@pytest.mark.parametrize("name", ["parity", "reader", "wrapped"])
def test_a_right_function_is_not_refuted(capsys, name):
    options = ["--automaton", "rules.txt", "--budget", "3000", "--longest", "200"]
    code, said = refute(capsys, f"mymodels:{name}", *options)
    assert (code, said.err) == (0, "")
    first, *others = said.out.splitlines()
    assert first.startswith("not refuted by words of ")
    assert "proven" not in said.out
    assert "1.0000" in others[-1]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run of the parity that was hardly trained."""
    path = tmp_path_factory.mktemp("runs")
    (path / "rules.txt").write_text(PARITY)
    with contextlib.redirect_stdout(io.StringIO()):
        words = [*TRAIN[:2], f"file={path / 'rules.txt'}", *TRAIN[2:]]
        assert main(["train", "--folder", str(path / "run"), *words]) == 0
    return path / "run"


def test_a_run_knows_its_task_and_its_letters(capsys, runs, folder):
    code, row = rows(capsys, runs, "--budget", "5000")
    assert (code, row["verdict"], row["letters"]) == (1, "refuted", ["a", "b"])
    assert (runs / "refutation.json").exists()
    # The folder's own file is replaced, however its path is written.
    assert refute(capsys, f"{runs}/", "--budget", "5000")[0] == 1
    assert row["margins"][-1] <= 0
    # The same letters and answers, which the lines of another file number otherwise.
    (folder / "other.txt").write_text(
        "start: even\neven b even\neven a odd\nodd b odd\nodd a even\n"
    )
    code, other = rows(capsys, runs, "--automaton", "other.txt", "--output", "other.json")
    assert (other["letters"], other["word"]) == (["b", "a"], row["word"])
    (folder / "more.txt").write_text(PARITY.replace(" b ", " c "))
    code, said = refute(capsys, runs, "--automaton", "more.txt")
    assert (code, said.err.splitlines()) == (
        2,
        ["statemix: the model must know each letter, got the letter 'c'"],
    )


def test_states_are_no_answers(capsys, runs, folder):
    words = [*TRAIN[:2], f"file={runs.parent / 'rules.txt'}", "states=true", *TRAIN[2:]]
    assert main(["train", "--folder", "states", *words]) == 0
    capsys.readouterr()
    code, said = refute(capsys, "states", "--head", "state")
    assert code == 2
    assert "head must be 'answer', which the automaton of the task describes" in said.err
    (folder / "numbers.txt").write_text(PARITY.replace("even", "0").replace("odd", "1"))
    code, row = rows(capsys, "states", "--head", "state", "--automaton", "numbers.txt")
    assert row["answers"] == ["1", "0"]


def test_files_of_the_user_are_not_replaced(capsys, folder):
    (folder / "notes.txt").write_text("mine")
    command = ["mymodels:forgetful", "--automaton", "rules.txt", "--output", "notes.txt"]
    code, said = refute(capsys, *command)
    assert (code, (folder / "notes.txt").read_text()) == (2, "mine")
    assert "notes.txt must hold a refutation, to be replaced" in said.err


@pytest.mark.parametrize("damage", ["missing", "broken", "unknown"])
def test_damaged_models_of_transformers_are_one_line(capsys, folder, damage):
    transformers = pytest.importorskip("transformers")
    safetensors = pytest.importorskip("safetensors.torch")
    ends = {"bos_token_id": None, "eos_token_id": None}
    config = transformers.GPT2Config(vocab_size=2, n_embd=8, n_layer=1, n_head=2, **ends)
    transformers.GPT2LMHeadModel(config).save_pretrained(folder / "model")
    path = folder / "model" / "model.safetensors"
    if damage == "missing":
        weights = safetensors.load_file(path)
        weights.pop("transformer.ln_f.weight")
        safetensors.save_file(weights, path, {"format": "pt"})
    elif damage == "broken":
        path.write_bytes(b"{}")
    else:
        (folder / "model" / "config.json").write_text('{"model_type": "foobar"}')
    capsys.readouterr()
    code, said = refute(capsys, "model", "--automaton", "rules.txt")
    message = {"missing": "ln_f.weight is missing"}.get(damage, "must hold a model of transformers")
    assert code == 2
    assert message in said.err
    assert len(said.err.splitlines()) == 1


def test_where_a_proof_is_possible_the_command_names_it(capsys, runs):
    code, said = refute(capsys, runs, "--regex", "c", "--budget", "10")
    assert code == 2
    code, said = refute(capsys, runs, "--budget", "1", "--longest", "1")
    assert (code, "may prove this kind" in said.out) in ((0, True), (1, False))


class Recurrent(nn.Module):
    """A GRU cell that reads one token of each word."""

    def __init__(self):
        super().__init__()
        self.embedding, self.cell = nn.Embedding(2, 4), nn.GRUCell(4, 6)
        self.readout = nn.Linear(6, 2)

    def forward(self, tokens, state):
        state = self.cell(self.embedding(tokens), state)
        return self.readout(state), state


@torch.no_grad()
@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_an_onnx_file_is_driven_step_by_step(capsys, folder):
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    torch.manual_seed(0)
    model = Recurrent().eval()
    batch = torch.export.Dim("B")
    program = torch.onnx.export(
        model,
        (torch.zeros(2, dtype=torch.int64), torch.zeros(2, 6)),
        dynamic_shapes={"tokens": {0: batch}, "state": {0: batch}},
        dynamo=True,
        verbose=False,
    )
    program.save(folder / "step.onnx")
    capsys.readouterr()
    code, row = rows(capsys, "step.onnx", "--automaton", "rules.txt", "--budget", "5000")
    assert code == 1
    word = word_of(row)
    state, margins = torch.zeros(1, 6), []
    for place in range(len(word)):
        logits, state = model(torch.tensor([row["letters"].index(word[place])]), state)
        right = (1 + word[: place + 1].count("a")) % 2
        margins.append(float(logits[0, right] - logits[0, 1 - right]))
    assert row["margins"] == pytest.approx(margins, abs=1e-5)
    assert margins[-1] <= 0 < min(margins[:-1], default=1)
    (folder / "no.onnx").write_text("no")
    code, said = refute(capsys, "no.onnx", "--automaton", "rules.txt")
    assert code == 2
    assert said.err.startswith("statemix: no.onnx must be an ONNX file, got: ")


@pytest.mark.parametrize("kind", ["GPT2", "Mamba"])
def test_a_model_of_transformers_is_driven_with_its_cache(capsys, folder, kind):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {
        "GPT2": {"n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 64},
        "Mamba": {"hidden_size": 8, "num_hidden_layers": 2, "state_size": 4},
    }[kind]
    ends = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    config = getattr(transformers, f"{kind}Config")(vocab_size=2, **sizes, **ends)
    name = {"GPT2": "GPT2LMHeadModel", "Mamba": "MambaForCausalLM"}[kind]
    model = getattr(transformers, name)(config).eval()
    model.save_pretrained(folder / "model")
    capsys.readouterr()
    code, row = rows(capsys, "model", "--automaton", "rules.txt", "--budget", "5000")
    assert code == 1
    word = word_of(row)
    tokens = torch.tensor([[row["letters"].index(letter) for letter in word]])
    logits = model(input_ids=tokens).logits[0].detach()
    right = (1 + tokens[0].eq(0).cumsum(0)) % 2
    margins = logits.gather(1, right[:, None]) - logits.gather(1, 1 - right[:, None])
    assert row["margins"] == pytest.approx(margins[:, 0].tolist(), abs=1e-3)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("mymodels:parity", "by --automaton FILE, --regex R or --task NAME, got none"),
        ("mymodels:parity --regex a --replay x", "only one of --automaton, --regex, --task and"),
        ("mymodels:parity --task recall", "must be given by --automaton .*, got the task recall"),
        ("mymodels:parity --regex )", "pattern must have"),
        ("mymodels:parity --regex a --budget 0", "budget must be at least 1, got 0"),
        ("mymodels:parity --regex a --seed -1", "seed must be .*, got '?-1"),
        ("mymodels:parity --replay x --output y", "output must be absent with --replay"),
        ("mymodels:parity --automaton no.txt", "automaton must be a text file, got no.txt"),
        ("mymodels:parity --automaton .", r"automaton must be a text file, got \.: not a regular"),
        ("mymodels:parity --replay rules.txt", "rules.txt must hold a refutation, got"),
        ("mymodels:Reader --regex a", "got 'mymodels:Reader', which is a class"),
        ("mymodels:make --regex a", r"tokens alone, got 'mymodels:make', which is make\(\)"),
        ("mymodels:make_one --regex a", "model must return logits or answers in .*, got <function"),
        ("mymodels:nothing --regex a", "MODEL must name an object of a module, got 'mymodels:not"),
        ("nomodule:parity --regex a", "MODEL must name an object of a module, got 'nomodule:par"),
        ("nothing --regex a", "MODEL must be a folder of a run or of transformers, FILE.onnx or"),
        ("mymodels:narrow --regex ab", "model must return logits of 2 classes or more, got float"),
    ],
)
def test_bad_requests_are_one_line(capsys, words, message):
    code, said = refute(capsys, *shlex.split(words))
    assert (code, said.out) == (2, "")
    assert len(said.err.splitlines()) == 1
    assert re.search(message, said.err)


def test_no_number_is_a_wrong_answer(capsys):
    code, said = refute(capsys, "mymodels:broken", "--regex", "ab")
    assert code == 1
    assert "  answer   no number after this word, where no is right\n" in said.out


def test_states_that_no_word_reaches_are_noted(capsys, folder):
    (folder / "rules.txt").write_text(PARITY + "lost a odd\nlost b odd\n")
    options = ["--automaton", "rules.txt", "--budget", "100"]
    code, said = refute(capsys, "mymodels:parity", *options)
    assert code == 0
    assert "  note     1 of 3 states were left out, because no word reaches them\n" in said.out
