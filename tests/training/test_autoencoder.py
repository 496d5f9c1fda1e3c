"""Runs of an autoencoder: batches of any form, all lengths, and the tasks that it does not fit."""

import pytest
import torch

from statemix.cli.main import main
from statemix.errors import SettingError
from statemix.layers import LayerSpec
from statemix.tasks import TASKS, TaskSpec
from statemix.training import evaluate, evaluation, load_model, train

AUTO = {"model.backbone": "autoencoder"}
COMPRESSION = AUTO | {"task": TaskSpec("compression", vocab_size=3, length=5, train_size=20)}


@pytest.fixture
def sums(toys):
    """A task of unequal lengths that scores every position."""

    @TASKS.register
    class Sums(toys.Ragged):
        name = "sums"
        heads = {"sum": 5}  # noqa: RUF012
        chance = {"sum": 1 / 5}  # noqa: RUF012

        def examples(self, *arguments):
            both = toys.Ragged(length=self.length, seed=self.seed).examples(*arguments)
            return both._replace(targets={"sum": both.targets["sum"]})

    yield Sums
    TASKS.remove("sums")


@pytest.mark.parametrize(
    ("bos", "accumulate", "packed"), [(False, 3, False), (True, 1, True), (False, 8, True)]
)
def test_steps_are_those_of_other_batches(sums, tiny, begun, bos, accumulate, packed):
    usual = AUTO | {
        "task": TaskSpec("sums", train_size=20),
        "runtime.precision": "64-true",
        "model.bos": bos,
        "model.layers": (LayerSpec("bd_lru", num_blocks=2, block_size=3), LayerSpec("lstm")),
    }

    def trained(**changes):
        run = begun(tiny(usual | changes))
        return [run.step() for _ in range(5)], run.loop.tensors()

    found = trained(**{"batches.accumulate": accumulate, "batches.packed": packed})
    torch.testing.assert_close(found, trained(), rtol=1e-9, atol=1e-11)


def test_a_run_scores_further_lengths_and_can_be_loaded(tiny, tmp_path):
    changes = {"evaluation.lengths": (1, 9, 40), "evaluation.tokens": 200}
    outcome = train(tiny(COMPRESSION | changes), tmp_path)
    assert list(outcome.last.test) == [1, 5, 9, 40]
    model = load_model(tmp_path)
    task = outcome.config.build_task()
    for length, scores in outcome.last.test.items():
        examples = task.examples("test", 0, scores["token"].num_sequences, length)
        with torch.no_grad():
            guesses = model(torch.from_numpy(examples.tokens))["token"].argmax(-1)
        right = guesses == torch.from_numpy(examples.tokens)
        assert scores["token"].token_accuracy == right.double().mean().item()
    assert main(["evaluate", str(tmp_path), "--lengths", "5", "70"]) == 0


def test_scores_do_not_depend_on_the_pieces(sums, tiny, begun, monkeypatch):
    model = begun(tiny(AUTO | {"task": TaskSpec("sums", train_size=20)})).model
    examples = sums(length=11).examples("test", 0, 13)
    whole = evaluate(model, examples)["sum"]
    other = examples.tokens.copy()
    other[examples.targets["sum"] == -100] = 0
    assert evaluate(model, examples._replace(tokens=other))["sum"] == whole
    widths = []
    embedding = model.backbone.embedding
    embedding.register_forward_pre_hook(lambda _, inputs: widths.append(inputs[0].numel()))
    monkeypatch.setattr(evaluation, "_TOKENS_PER_CALL", 12)
    monkeypatch.setattr(evaluation, "_ROWS_AT_LEAST", 3)
    pieces = evaluate(model, examples)["sum"]
    # Three rows of four tokens, and the learned token before them.
    assert max(widths) == 3 * (4 + 1)
    assert pieces.token_accuracy == whole.token_accuracy
    assert pieces.loss == pytest.approx(whole.loss, rel=1e-5)


@pytest.mark.parametrize("name", ["recall", "parity", "ragged"])
def test_tasks_that_leave_positions_unscored_are_refused(toys, tiny, tmp_path, name):
    message = rf"^model.backbone must be 'causal' for a task that leaves .*\({name}\), got 'autoen"
    with pytest.raises(SettingError, match=message):
        train(tiny(AUTO | {"task": TaskSpec(name, train_size=20)}), tmp_path / "run")
    assert not (tmp_path / "run").exists()
