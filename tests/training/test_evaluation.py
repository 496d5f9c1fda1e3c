"""Scores equal their slow definitions, for pieces of any size."""

import numpy as np
import pytest
import torch

from statemix.errors import RequestError
from statemix.layers import LayerSpec
from statemix.models import TokenClassifier
from statemix.tasks import Examples
from statemix.training import Scores, accuracy, evaluate, evaluation
from statemix.training.evaluation import SplitEvaluator, mad_accuracy, sequences_at


@pytest.fixture
def model():
    layers = [LayerSpec("bd_lru", num_blocks=2, block_size=3)]
    return TokenClassifier(6, {"y": 6}, 8, layers, bos=True, seed=1)


def score(model, tokens, targets, **options):
    """The scores of the only head."""
    examples = Examples(tokens.numpy(), {"y": targets.numpy()})
    (scores,) = evaluate(model, examples, **options).values()
    return scores


def ids(*shape):
    return torch.zeros(shape, dtype=torch.int64)


def slow_mad(predictions, targets):
    pairs = [
        (p, t)
        for p, t in zip(predictions.flatten().tolist(), targets.flatten().tolist(), strict=True)
        if t != -100
    ]
    recalls = []
    for label in {p for p, _ in pairs} | {t for _, t in pairs}:
        of_label = [p == label for p, t in pairs if t == label]
        recalls.append(sum(of_label) / len(of_label) if of_label else 0.0)
    return sum(recalls) / len(recalls)


def test_scores_match_their_slow_definitions(model):
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(6, (10, 7), generator=generator)
    targets = torch.randint(6, (10, 7), generator=generator)
    with torch.no_grad():
        logits = model(tokens)["y"]
    guesses = logits.argmax(-1)
    # The first sequence has only some scored positions, and all of these are right.
    targets[0] = guesses[0]
    targets[0, 3:] = -100
    targets[1, ::2] = -100
    scored = targets != -100
    scores = score(model, tokens, targets, batch_size=4)
    assert scores.num_sequences == 10
    assert scores.token_accuracy == (guesses == targets)[scored].double().mean().item()
    assert scores.sequence_accuracy == pytest.approx(
        ((guesses == targets) | ~scored).all(1).double().mean().item()
    )
    assert scores.sequence_accuracy >= 0.1
    log_p = logits.log_softmax(-1).gather(-1, targets.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    assert scores.loss == pytest.approx(-log_p[scored].mean().item(), rel=1e-5)
    batches = [(slice(0, 4), 4), (slice(4, 8), 4), (slice(8, 10), 2)]
    mad = sum(slow_mad(guesses[rows], targets[rows]) * size for rows, size in batches) / 10
    assert scores.mad_accuracy == pytest.approx(mad)
    assert mad_accuracy(ids(2), ids(2) - 100) == 0.0


@pytest.mark.parametrize(("tokens_per_call", "rows", "count"), [(1, 1, 55), (12, 3, 6)])
def test_scores_do_not_depend_on_the_pieces(model, monkeypatch, tokens_per_call, rows, count):
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(6, (5, 11), generator=generator)
    targets = torch.randint(6, (5, 11), generator=generator)
    whole = score(model, tokens, targets)
    monkeypatch.setattr(evaluation, "_TOKENS_PER_CALL", tokens_per_call)
    monkeypatch.setattr(evaluation, "_ROWS_AT_LEAST", rows)
    ticks = []
    pieces = score(model, tokens, targets, tick=lambda: ticks.append(1))
    # Three rows and then two, each in four, four and three steps.
    assert len(ticks) == count
    assert pieces.token_accuracy == whole.token_accuracy
    assert pieces.mad_accuracy == whole.mad_accuracy
    assert pieces.loss == pytest.approx(whole.loss, rel=1e-5)


@pytest.fixture
def two_heads():
    layers = [LayerSpec("bd_lru", num_blocks=2, block_size=3)]
    return TokenClassifier(5, {"sum": 5, "parity": 2}, 8, layers, seed=1)


def test_every_head_is_scored_alone_and_ended_sequences_do_not_count(toys, two_heads):
    examples = toys.Ragged(length=6).examples("test", 0, 7)
    with torch.no_grad():
        logits = two_heads(torch.from_numpy(examples.tokens))
    scores = evaluate(two_heads, examples)
    assert list(scores) == ["sum", "parity"]
    for head, found in scores.items():
        right, scored, whole = 0, 0, 0
        for row, length in enumerate(examples.lengths):
            wanted = torch.from_numpy(examples.targets[head][row, :length])
            at = wanted != -100
            hits = (logits[head][row, :length].argmax(-1) == wanted)[at]
            right, scored, whole = right + int(hits.sum()), scored + len(hits), whole + hits.all()
        assert found.token_accuracy == right / scored
        assert found.sequence_accuracy == pytest.approx(int(whole) / 7)
    other = examples.tokens.copy()
    other[np.arange(6) >= examples.lengths[:, None]] = 0
    assert evaluate(two_heads, examples._replace(tokens=other)) == scores


def test_runs_are_chosen_by_the_mean_over_heads():
    scores = {"a": Scores(1, 0.25, 0.0, 0.0, 1.0), "b": Scores(1, 0.75, 1.0, 1.0, 0.0)}
    assert accuracy(scores) == 0.5
    assert accuracy({"a": scores["a"]}) == 0.25


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"tokens": ids(3)}, ValueError, r"tokens must have shape \(N, T\), got \(3,\)"),
        ({"targets": ids(2, 4)}, ValueError, r"must have shape \(N=2, T=3\), got \(2, 4\)"),
        ({"targets": ids(2, 3).int()}, TypeError, r"targets\['y'\] must be int64, got .*int32"),
        ({"targets": ids(2, 3) - 100}, ValueError, "must score at least one position, got none"),
        ({"targets": ids(2, 3) - 1}, ValueError, r"must be in 0\.\.5 or -100, got -1"),
        ({"tokens": ids(2, 3) + 6}, ValueError, r"tokens must be in 0\.\.5 .* got 6"),
        ({"batch_size": 0}, ValueError, "batch_size must be at least 1, got 0"),
    ],
)
def test_bad_input_is_named(model, changed, error, message):
    with pytest.raises(error, match=message):
        score(model, **({"tokens": ids(2, 3), "targets": ids(2, 3)} | changed))
    with pytest.raises(ValueError, match=r"targets must have the heads \['y'\] of the model"):
        evaluate(model, Examples(ids(2, 3).numpy(), {"z": ids(2, 3).numpy()}))


def test_longer_words_are_fewer_but_at_least_one():
    counts = [sequences_at(n, at_most=1280, tokens=65536) for n in (16, 64, 4096, 16384, 10**6)]
    assert counts == [1280, 1024, 16, 4, 1]


ROW = np.zeros((1, 4), np.int64)


class Constant:
    """A task of zeros, but for what a test changes."""

    name = "constant"
    vocab_size, heads, length = 2, {"y": 3}, 4

    def __init__(self, **changed):
        self.found = Examples(**({"tokens": ROW, "targets": {"y": ROW}} | changed))

    def examples(self, split, start, stop, length=None):
        assert (start, stop) == (0, 1)
        return self.found


@pytest.mark.parametrize(
    ("changed", "length", "message"),
    [
        ({"tokens": ROW + 2}, None, "have tokens in 0..1, got 2..2"),
        ({"targets": {"y": ROW + 3}}, None, "targets of head 'y' in 0..2, got 3..3"),
        ({"targets": {"x": ROW}}, None, r"targets of head 'y' of shape \(1, 4\), got none"),
        ({}, 9, "follow the length asked for, got the same tokens at lengths 4 and 9"),
    ],
)
def test_examples_that_do_not_fit_their_task_are_named(changed, length, message):
    with pytest.raises(RequestError, match=f"^task 'constant': examples must .*{message}"):
        SplitEvaluator(Constant(**changed), "test", 1, length)


def test_mad_accuracy_uses_batches_of_128_as_mad_does(model):
    generator = torch.Generator().manual_seed(0)
    tokens, targets = (torch.randint(6, (300, 3), generator=generator) for _ in range(2))
    default = score(model, tokens, targets).mad_accuracy
    assert default == score(model, tokens, targets, batch_size=128).mad_accuracy
    for other in (127, 129, 300):
        assert default != score(model, tokens, targets, batch_size=other).mad_accuracy
