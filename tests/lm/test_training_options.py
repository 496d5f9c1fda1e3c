"""Options of training: each test fails if its option does nothing."""

import functools
import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.lm.conftest import build_model, write_documents
from torch.nn import functional

from statemix.lm import StatemixConfig, language_training
from statemix.lm.language_optimizers import CosineRate
from statemix.lm.language_scores import summed_loss
from statemix.lm.language_training import TokenBatches, train_language_model
from statemix.lm.presets import LanguageSettings
from statemix.lm.shards import read_tokens

SETTINGS = LanguageSettings(8, 6, 3, 1e-2, evaluate_every=2, seed=5)
CONFIG = StatemixConfig(
    vocab_size=50, hidden_size=16, intermediate_size=32, num_hidden_layers=2, eos_token_id=0
)


@pytest.fixture
def train(tmp_path):
    """Return a function that trains a small model with options, and returns its weights."""
    draw = np.random.default_rng(0)
    documents = [(draw.integers(0, 50, 40), 100) for _ in range(10)]
    tokens = read_tokens(write_documents(tmp_path / "train", 50, documents, {}))
    held_out = read_tokens(write_documents(tmp_path / "held_out", 50, documents[:1], {}))
    runs = (tmp_path / f"run{number}" for number in range(9))

    def weights(settings=SETTINGS, **options):
        trained, _ = train_language_model(
            CONFIG, tokens, held_out, next(runs), settings, device="cpu", **options
        )
        return torch.cat([parameter.detach().flatten() for parameter in trained.parameters()])

    return weights


def seen(monkeypatch, name, note):
    """Call ``note`` with what a function of the training gets and returns."""
    function = getattr(language_training, name)

    def noting(*arguments):
        found = function(*arguments)
        note(*arguments, found)
        return found

    monkeypatch.setattr(language_training, name, noting)


def test_accumulation_makes_the_step_of_a_large_batch(train, monkeypatch):
    sizes = []
    seen(monkeypatch, "summed_loss", lambda model, tokens, loss: sizes.append(len(tokens)))
    whole = train()
    torch.testing.assert_close(train(replace(SETTINGS, accumulate=4)), whole)
    assert sizes == [6] * 3 + [2, 2, 1, 1] * 3


def test_all_groups_have_the_rate_of_the_step_and_the_betas(train, monkeypatch):
    noted = []

    def note(model, settings, optimizer):
        optimizer.register_step_pre_hook(
            lambda *_: noted.append([(g["lr"], g.get("betas")) for g in optimizer.param_groups])
        )

    seen(monkeypatch, "optimizer_of", note)
    settings = replace(SETTINGS, steps=20, optimizer="muon")
    train(settings)
    rates = [CosineRate(settings).rate(step) for step in range(20)]
    assert len(set(rates)) == 19
    for rate, groups in zip(rates, noted, strict=True):
        assert {one for one, _ in groups} == {rate}
        assert {betas for _, betas in groups} - {None} == {(0.9, 0.95)}


def test_the_seed_decides_the_first_weights_and_the_order(train):
    first = [train(replace(SETTINGS, seed=seed, learning_rate=1e-5)) for seed in (5, 5, 6)]
    assert torch.equal(first[0], first[1])
    assert (first[0] - first[2]).abs().max() > 1e-2


def test_numbers_reach_the_training(train, monkeypatch):
    asked = []
    monkeypatch.setattr(language_training, "fit", lambda *_, **options: asked.append(options))
    score = lambda *_, most_bytes: most_bytes  # noqa: E731
    monkeypatch.setattr(language_training, "bits_per_byte", score)
    train(replace(SETTINGS, clip_norm=0.3), most_bytes=7)
    (options,) = asked
    names = ("clip_norm", "num_steps", "evaluate_every", "seed")
    assert [options[name] for name in names] == [0.3, 3, 2, 5]
    assert options["evaluate"](None) == 7


def test_a_window_of_the_user_is_kept(train, tmp_path):
    options = {"mixers": {"name": "attention", "num_heads": 2}, "training_length": 5}
    config = StatemixConfig(**{**CONFIG.to_dict(), **options})
    tokens = read_tokens(write_documents(tmp_path / "some", 50, [(np.arange(1, 50), 100)] * 2, {}))
    settings = replace(SETTINGS, steps=1)
    model, _ = train_language_model(config, tokens, tokens, tmp_path / "run", settings)
    assert model.config.training_length == 5


def test_gradient_checkpointing_computes_blocks_again(train, monkeypatch):
    calls, build = [], language_training.StatemixForCausalLM

    def counted(config):
        model = build(config)
        mlp = model.model.layers[0].mlp
        mlp.register_forward_pre_hook(lambda *_: calls.append(mlp.training))
        return model

    monkeypatch.setattr(language_training, "StatemixForCausalLM", counted)
    kept = train()
    once = sum(calls)
    calls.clear()
    assert torch.equal(train(gradient_checkpointing=True), kept)
    assert (once, sum(calls)) == (3, 6)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
def test_compiled_blocks_train_and_evaluations_are_not_compiled(train, monkeypatch):
    calls = []

    def counting(graph, inputs):
        del inputs

        def call(*arguments):
            calls.append(torch.is_grad_enabled())
            return graph(*arguments)

        return call

    plain = train()
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=counting))
    torch.testing.assert_close(train(compiled=True), plain)
    # Every block in every step.
    assert calls.count(True) >= 2 * 3
    assert all(calls)


def test_bfloat16_multiplies_matrices_but_keeps_weights(train, monkeypatch):
    dtypes = []
    build = language_training.StatemixForCausalLM

    def watched(config):
        model = build(config)
        up = model.model.layers[0].mlp.up_proj
        up.register_forward_hook(lambda up, x, y: dtypes.append((up.weight.dtype, y.dtype)))
        return model

    monkeypatch.setattr(language_training, "StatemixForCausalLM", watched)
    for precision, dtype in (("32-true", torch.float32), ("bf16-mixed", torch.bfloat16)):
        dtypes.clear()
        assert train(precision=precision).dtype == torch.float32
        assert set(dtypes) == {(torch.float32, dtype)}


@pytest.mark.parametrize("vocab_size", [50, 9000])
def test_the_loss_and_its_gradients_are_those_of_all_logits(vocab_size, monkeypatch):
    chunks = []
    chunked = functional.linear_cross_entropy
    monkeypatch.setattr(
        functional,
        "linear_cross_entropy",
        lambda *arguments, **options: chunks.append(1) or chunked(*arguments, **options),
    )
    model = build_model("bd_lru", vocab_size=vocab_size)
    tokens = torch.randint(0, 50, (2, 6))
    wanted = model(tokens, labels=tokens).loss * 10
    gradients = torch.autograd.grad(wanted, list(model.parameters()))
    found = summed_loss(model, tokens)
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(torch.autograd.grad(found, list(model.parameters())), gradients)
    assert len(chunks) == (vocab_size == 9000)


def test_a_loss_of_nan_names_step_batch_and_checkpoint(train, tmp_path, monkeypatch):
    calls, loss = itertools.count(1), language_training.summed_loss

    def failing(model, tokens):
        return loss(model, tokens) * (np.nan if next(calls) == 3 else 1.0)

    monkeypatch.setattr(language_training, "summed_loss", failing)
    settings = replace(SETTINGS, batch_size=12)
    with pytest.raises(FloatingPointError) as caught:
        train(settings, checkpoint_every_s=0.0)
    message = str(caught.value)
    assert "got nan at step 3 of 3" in message
    assert "the last good checkpoint is " in message
    assert "step-000000001" in message
    tokens = read_tokens(tmp_path / "train.bin")
    wanted = []
    for place in TokenBatches(tokens.ids, settings).places(2)[:8]:
        # Documents have 40 tokens.
        first, last = place // 40, (place + 8) // 40
        named = f"document {first}" if first == last else f"documents {first} to {last}"
        wanted.append(f"{place} ({named})")
    assert f"begin in {tokens.path} at token {', '.join(wanted)} and 4 further tokens" in message
