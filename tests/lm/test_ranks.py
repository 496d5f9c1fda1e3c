"""Many processes train as one does: DDP and FSDP2 on two processes, with real files and kills."""

import json
import shutil

import pytest
import torch
from tests.lm.two_processes import assert_equal_files, files, run_script, torchrun, train_tiny
from transformers import AutoModelForCausalLM

from statemix.errors import RequestError
from statemix.training.folder import read_metrics, read_status

STRATEGIES = ("ddp", "fsdp")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Runs of two processes, whole and disturbed, and one of a single process."""
    folder = tmp_path_factory.mktemp("ranks")
    done = run_script(folder, STRATEGIES, refusals=True)
    assert done.returncode == 0, done.stderr
    losses = []
    train_tiny(folder / "single", losses=losses)
    (folder / "single.json").write_text(json.dumps(losses))
    return folder


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_two_processes_train_as_one(trained, strategy):
    """Momentum shows the scale of the gradients, and clipping their global norm."""
    assert_equal_files(trained / strategy, trained / "single", rtol=1e-5, atol=1e-6)
    first, second = (json.loads((trained / f"{strategy}-{r}.json").read_text()) for r in (0, 1))
    assert first["losses"] == pytest.approx(json.loads((trained / "single.json").read_text()))
    assert second["losses"] == []
    # Tied weights stay one tensor.
    assert first["tied"]
    assert second["tied"]
    weights = files(trained / strategy)["model.safetensors"]
    assert torch.equal(weights["lm_head.weight"], weights["model.embed_tokens.weight"])
    rows, wanted = (read_metrics(trained / name) for name in (strategy, "single"))
    assert [row["step"] for row in rows] == [3, 6, 7]
    for row, other in zip(rows, wanted, strict=True):
        assert row["scores"] == pytest.approx(other["scores"])
        assert row["train"] == pytest.approx(other["train"])
        assert row["sharded"] == (strategy == "fsdp")


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_all_processes_decide_alike(trained, strategy):
    """A signal to one process, or a NaN in one, ends all at the same step with a checkpoint."""
    first, second = (
        json.loads((trained / f"{strategy}-{r}.json").read_text())["refusals"] for r in (0, 1)
    )
    assert first["signal"] == second["signal"] == "KeyboardInterrupt: "
    # Resumed later, the run has lost nothing.
    assert_equal_files(
        trained / f"{strategy}-refused" / "signal", trained / strategy, rtol=0, atol=0
    )
    for message in (first["nan"], second["nan"]):
        assert message.startswith("FloatingPointError: loss must be finite, got nan at step 5 of 7")
    stopped = trained / f"{strategy}-refused" / "nan"
    assert read_status(stopped).status == "diverged"
    (*_, newest) = sorted((stopped / "checkpoints").iterdir())
    assert newest.name == "step-000000004"
    for message in (first["other"], second["other"]):
        assert message.startswith("RequestError: folder must hold a run of the same configuration")
    refused = first["double"].startswith("RequestError: precision must be 32-true or bf16-mixed")
    assert refused == (strategy == "fsdp")


def test_the_command_shards_a_model_that_loads_tied(prepared, tmp_path):
    """As written for one process: the same options, one report, one folder, one set of curves."""
    words = "--num-layers 1 --hidden-size 16 --layer bd_lru num_blocks=4 block_size=2 --length 16"
    words += " --batch-size 4 --steps 3 --device cpu --strategy fsdp"
    folders = ["--folder", str(tmp_path / "run"), "--tokens", str(prepared)]
    done = torchrun("-m", "statemix", "lm", "train", *folders, *words.split())
    # PyTorch 2.13 aborts in one of fifty processes that had a device mesh, after all is stored.
    assert done.returncode == 0 or "terminate called without an active" in done.stderr, done.stderr
    assert done.stdout.count("parameters") == done.stdout.count("bits per byte") == 1
    assert done.stderr.count("finished at step 3") == 1
    assert len(list((tmp_path / "run" / "tensorboard").iterdir())) == 1
    environment = json.loads((tmp_path / "run" / "environment.json").read_text())
    assert (environment["num_processes"], environment["strategy"]) == (2, "fsdp")
    assert "lm_head.weight" not in files(tmp_path / "run" / "model")["model.safetensors"]
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "model")
    weights = files(tmp_path / "run")["model.safetensors"]
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, weights[name]), name
    model.resize_token_embeddings(310)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert (tmp_path / "run" / "model" / "tokenizer.json").exists()


def test_a_kill_of_one_process_changes_no_bit(trained, tmp_path):
    assert run_script(tmp_path, ["fsdp"], kills=[("fsdp", 3, [1])]).returncode != 0
    assert read_status(tmp_path / "fsdp").status != "done"
    shutil.copytree(tmp_path / "fsdp", tmp_path / "alone")
    newest = tmp_path / "fsdp" / "checkpoints" / "step-000000003"
    assert len(list(newest.glob("*.safetensors"))) == 2
    done = run_script(tmp_path, ["fsdp"])
    assert done.returncode == 0, done.stderr
    assert_equal_files(tmp_path / "fsdp", trained / "fsdp", rtol=0, atol=0)
    assert [row["step"] for row in read_metrics(tmp_path / "fsdp")] == [3, 6, 7]
    # One process continues from the shards of two.
    resumed = []
    with pytest.warns(UserWarning, match=r"have changed: .*num_processes=1 \(2 before\)"):
        train_tiny(tmp_path / "alone", losses=resumed)
    assert len(resumed) == 4
    assert_equal_files(tmp_path / "alone", trained / "single", rtol=1e-5, atol=1e-6)


def test_an_unknown_strategy_is_refused(tmp_path):
    with pytest.raises(RequestError, match="strategy must be 'ddp' or 'fsdp', got 'zero'"):
        train_tiny(tmp_path / "run", strategy="zero")
    assert not (tmp_path / "run").exists()
