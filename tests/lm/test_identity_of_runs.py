"""Each option of `lm train` identifies the run, is named by a warning, or changes no result."""

import dataclasses
import shlex
import shutil
import sys
import warnings

import pytest
from tests.lm.conftest import TINY

from statemix.cli.lm.train_text import TrainText
from statemix.cli.main import main
from statemix.layers import LAYERS
from statemix.lm.prepared import prepare

REFUSED = {
    "layer": "--layer h_lru num_channels=8 order=2",
    "attention_every": "--attention-every 1",
    "conv_size": "--conv-size 2",
    "output_gate": "--output-gate",
    "hidden_size": "--hidden-size 32",
    "num_layers": "--num-layers 2",
    "length": "--length 8",
    "batch_size": "--batch-size 3",
    "accumulate": "--accumulate 2",
    "steps": "--steps 4",
    "learning_rate": "--learning-rate 1e-3",
    "optimizer": "--optimizer muon",
    "weight_decay": "--weight-decay 0",
    "min_learning_rate": "--min-learning-rate 1e-4",
    "warmup_share": "--warmup-share 0.5",
    "clip_norm": "--clip-norm 0.5",
    "precision": "--precision bf16-mixed",
    "seed": "--seed 4",
}
WARNED = {
    "evaluate_every": "--evaluate-every 2",
    "evaluate_bytes": "--evaluate-bytes 300",
    "compile": "--compile",
    "sequence_parallel": "--sequence-parallel",
    "imports": "--imports json",
}
# Tests of their own show that results do not depend on them.
SAME = {
    "gradient_checkpointing": "--gradient-checkpointing",
    "checkpoint_every_s": "--checkpoint-every-s 5",
    "strategy": "--strategy fsdp",
    "extend": "--extend",
}
# Folders; the size, which sets other options; what needs a GPU or an account. A warning names
# another device while a run is unfinished.
OTHERS = {"folder", "tokens", "size", "device", "wandb"}


@pytest.fixture(scope="module")
def finished(prepared, tmp_path_factory):
    """The command that has trained a run, and its folder."""
    folder = tmp_path_factory.mktemp("identity") / "run"
    words = ["--folder", str(folder), *TINY, "--steps", "3", "--evaluate-bytes", "200"]
    command = ["lm", "train", "--tokens", str(prepared), *words]
    assert main(command) == 0
    return command, folder


def changed(command, words, is_replaced=False):
    """The command with other words; a later option replaces an earlier one."""
    option, kept = words.split()[0], []
    for word in command:
        is_replaced = word == option if word.startswith("--") else is_replaced
        kept += [] if is_replaced else [word]
    return [*kept, *shlex.split(words)]


def test_every_option_is_listed():
    names = {field.name for field in dataclasses.fields(TrainText)}
    assert {*REFUSED, *WARNED, *SAME, *OTHERS} == names


@pytest.mark.parametrize("option", REFUSED)
def test_what_identifies_a_run_is_refused(finished, option, capsys):
    command, folder = finished
    assert main(changed(command, REFUSED[option])) == 2
    error = capsys.readouterr().err
    assert f"folder must hold a run of the same configuration, got {folder} with " in error
    if option in ("precision", "clip_norm", "seed", "learning_rate", "accumulate"):
        assert f".{option}=" in error


# PyTorch's compiler deprecates what it uses.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("option", WARNED)
def test_what_else_decides_results_is_named_by_a_warning(finished, option):
    command, _ = finished
    with pytest.warns(UserWarning, match=f"finished run, .* have changed: {option}="):
        assert main(changed(command, WARNED[option])) == 0


@pytest.mark.parametrize("option", SAME)
def test_what_decides_nothing_is_accepted(finished, option):
    command, folder = finished
    before = (folder / "model.safetensors").read_bytes()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        assert main(changed(command, SAME[option])) == 0
    assert (folder / "model.safetensors").read_bytes() == before


@pytest.mark.parametrize("part", ["train", "held_out"])
def test_tokens_that_were_prepared_again_are_noticed(finished, prepared, tmp_path, part, refused):
    command, _ = finished
    shutil.copytree(prepared.parent / "texts", tmp_path / "texts")
    tokens, again = tmp_path / "same", changed(command, f"--tokens {tmp_path / 'same'}")
    prepare([str(tmp_path / "texts")], tokens, tokenizer="bpe:300")
    # The same tokens in another folder are the same.
    assert main(again) == 0
    for name in (tmp_path / "texts").rglob("*.py"):
        name.write_text(name.read_text() + "# more\n")
    prepare([str(tmp_path / "texts")], tmp_path / "other", tokenizer=str(tokens / "tokenizer.json"))
    for file in (tmp_path / "other").glob(f"{part}.*"):
        file.replace(tokens / file.name)
    if part == "held_out":
        with pytest.warns(UserWarning, match="have changed: held_out="):
            assert main(again) == 0
    else:
        refused(again, "fit.settings.tokens.train.bin=")


OWN_LAYER = """
from statemix.layers import LAYERS, BDLRU

@LAYERS.register
class Own(BDLRU):
    name = "own"
"""


def test_language_commands_import_what_the_user_names(prepared, tmp_path, capsys, monkeypatch):
    """A model with a layer of one's own, in every command."""
    (tmp_path / "my_layer.py").write_text(OWN_LAYER)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    words = " ".join(TINY).replace("bd_lru", "own").split()
    train = ["train", "--folder", "run", "--tokens", str(prepared), *words, "--steps", "2"]
    for command in (
        train,
        ["generate", "run", "def", "--max-new-tokens", "2"],
        ["evaluate", "run", "--tokens", str(prepared), "--most-bytes", "100"],
        ["generate", "run/model", "def", "--max-new-tokens", "2"],
    ):
        assert main(["lm", *command]) == 2
        if command[0] != "train":
            advice = "add --imports my_layer if you trust its code"
            assert advice in capsys.readouterr().err
        assert main(["lm", *command, "--imports", "my_layer"]) == 0
        del sys.modules["my_layer"]
        LAYERS.remove("own")
    (tmp_path / "my_layer.py").write_text(f"{OWN_LAYER}\n# changed")
    with pytest.warns(UserWarning, match="have changed: source of my_layer="):
        assert main(["lm", *train, "--imports", "my_layer"]) == 0
    LAYERS.remove("own")
