"""A BD-LRU that learns what tokens do to places, its training, and its answers."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from statemix.layers import BDLRU, LayerSpec
from statemix.layers.bd_lru import sharpen
from statemix.models import TokenClassifier
from statemix.place_rules import PlaceRules
from statemix.proofs.certificate_tables import read_rules
from statemix.training import Event, Fitted, Hook, fit

_CHANNELS = 4
# Scale of the ones of features, and initial raw gates: entries keep what they hold, and a value is
# the next choice. So an emptied square loads a value, instead of a copy of some empty square.
_FEATURE, _KEEP, _LOAD = 10.0, 10.0, 6.5
_STD = 0.01
# Sharpness of the readouts.
_SHARPNESS = 3.0
_LEARNING_RATE, _BIAS_RATE = 1e-2, 2e-2
_WARM_UP, _DECAY_FROM = 20, 0.6
# Adam would turn the tiny gradients of settled gates into steps of full size.
_EPS = 1e-6
_CLIP = 5.0
_SEGMENTS, _SEGMENT_TOKENS = 340, 3
# Further weight of a place whose content a move has changed.
_CHANGED = 20.0
# Share of segments that begin with random contents, and of the places that get them.
_RANDOM = 0.5
# Raw gates take most memory of an answer: 25 kB for each token of chess.
_TOKENS_AT_ONCE = 2048


def place_tracker(
    rules: PlaceRules, heads: dict[str, int], features: NDArray[np.float32], seed: int
) -> TokenClassifier:
    r"""Return a model of one BD-LRU with an entry for each place, whose gates alone are trained.

    The entries begin with the codes of what the places hold. A code is a fixed vector of four
    channels: zero for content 0, and a corner of the 24-cell for each other content. A readout
    chooses the nearest code. The values of all tokens are zero, so that a load empties a place.
    The gates of a token are a sum over its features:

    .. math:: z_t = W f_t + c

    Heads are those of the first places, and tokens load no content but 0.
    """
    if rules.sources.min() < -1:
        raise ValueError(f"rules must load content 0 alone, got {-1 - rules.sources.min()}")
    size = rules.num_places
    entries = {"num_blocks": 1, "block_size": size, "value_channels": _CHANNELS}
    layer = LayerSpec("bd_lru", **entries, initial_state="learned")
    wrapper: dict[str, Any] = {"residual": False, "norm": "none", "seed": seed}
    model = TokenClassifier(rules.num_tokens, heads, size * _CHANNELS, [layer], **wrapper)
    mixer = model.backbone.blocks[0].mixer
    assert isinstance(mixer, BDLRU)
    assert mixer.learned_state is not None
    codes = _codes(rules.num_contents)
    model.requires_grad_(requires_grad=False)
    with torch.no_grad():
        embedding = model.backbone.embedding.weight.zero_()
        embedding[:, : features.shape[1]] = _FEATURE * torch.from_numpy(features)
        mixer.learned_state[0] = codes[torch.from_numpy(rules.start)]
        mixer.value_proj.weight.zero_()
        mixer.out_proj.weight.copy_(torch.eye(size * _CHANNELS))
        generator = torch.Generator().manual_seed(seed)
        nn.init.normal_(mixer.gate_proj.weight, std=_STD, generator=generator)
        bias = mixer.gate_proj.bias.view(size, size + 1).zero_()
        bias.diagonal().fill_(_KEEP)
        bias[:, -1] = _LOAD
        for place, readout in enumerate(model.readouts.values()):
            assert isinstance(readout, nn.Linear)
            own = slice(place * _CHANNELS, (place + 1) * _CHANNELS)
            weight, readout.bias[:] = _nearest(codes[: readout.out_features])
            readout.weight.zero_()[:, own] = weight
    mixer.gate_proj.requires_grad_(requires_grad=True)
    return model


def _codes(num_contents: int) -> Tensor:
    """Return a code for each content, shape (contents, 4): 0, and vectors of length 2."""
    corners = []
    for axes in itertools.combinations(range(4), 2):
        for signs in itertools.product((1.0, -1.0), repeat=2):
            corner = torch.zeros(4)
            corner[list(axes)] = torch.tensor(signs)
            corners.append(corner * 2**0.5)
    return torch.stack([torch.zeros(4), *corners])[:num_contents]


def _nearest(codes: Tensor) -> tuple[Tensor, Tensor]:
    """Return weight and bias of logits -s |h - code|^2 / 2, up to a number that all share."""
    return _SHARPNESS * codes, -_SHARPNESS * codes.square().sum(-1) / 2


def alike(model: TokenClassifier, rules: PlaceRules) -> float:
    """Return the share of tokens that, with hard gates, do to entries what they do to places."""
    entries = read_rules(model, model.backbone.vocab_size).sources
    return float(((entries == rules.sources) | ((entries < 0) & (rules.sources < 0))).all(1).mean())


def contents_before(rules: PlaceRules, words: NDArray[np.int64]) -> NDArray[np.int8]:
    """Return the contents before each token of words (N, T), shape (N, T, places)."""
    start = np.broadcast_to(rules.start, (len(words), 1, rules.num_places))
    # In bytes, as positions of chess take more memory than all the rest.
    later = rules.contents(words[:, :-1]).astype(np.int8)
    return np.concatenate([start.astype(np.int8), later], axis=1)


class EvenDraws:
    """Draws places in words such that all tokens of the words are equally likely there."""

    def __init__(self, words: NDArray[np.int64]) -> None:
        self._order: NDArray[np.int64] = np.argsort(words, axis=None, kind="stable")
        tokens = words.ravel()[self._order]
        _, self._first, self._counts = np.unique(tokens, return_index=True, return_counts=True)

    def __call__(self, draw: np.random.Generator, size: int) -> NDArray[np.int64]:
        """Return flat indices of places."""
        which = draw.integers(len(self._first), size=size)
        places: NDArray[np.int64] = self._first[which] + draw.integers(self._counts[which])
        return self._order[places]


class _Segments(NamedTuple):
    """Contents (B, T+1, places) before and after the tokens (B, T) of segments of words."""

    contents: Tensor
    tokens: Tensor


class SegmentSampler:
    """Draws segments of words, by the number of a step.

    All tokens of the words are equally likely to be in a segment. Half of the segments begin with
    the contents that the word has there. In the other half, about half of the places have random
    contents. Legal games of chess do not tell all sources of an empty square apart: the squares on
    the path of a move are always empty, and White moves when the side to move is 0, the number of
    an empty square.
    """

    def __init__(self, words: NDArray[np.int64], rules: PlaceRules, seed: int) -> None:
        self._words, self._rules, self._seed = words, rules, seed
        self._before, self._draw = contents_before(rules, words), EvenDraws(words)

    def __call__(self, step: int) -> _Segments:
        draw, length = np.random.default_rng([self._seed, step]), self._words.shape[1]
        word, place = np.divmod(self._draw(draw, _SEGMENTS), length)
        earlier = draw.integers(_SEGMENT_TOKENS, size=_SEGMENTS)
        begin = np.clip(place - earlier, 0, length - _SEGMENT_TOKENS)
        before = self._before[word, begin].astype(np.int64)
        spoilt = (draw.random((_SEGMENTS, 1)) < _RANDOM) & (draw.random(before.shape) < _RANDOM)
        contents = draw.integers(self._rules.num_contents, size=before.shape)
        before = np.where(spoilt, contents, before)
        tokens = self._words[word[:, None], begin[:, None] + np.arange(_SEGMENT_TOKENS)]
        contents = np.concatenate([before[:, None], self._rules.contents(tokens, before)], axis=1)
        return _Segments(torch.from_numpy(contents), torch.from_numpy(tokens))


class _Schedule(Hook):
    """The learning rate and the gate temperature."""

    def before_step(self, loop: Any) -> None:
        done = loop.step / loop.num_steps
        warm = min(1.0, (loop.step + 1) / _WARM_UP)
        factor = min(1.0, max(0.02, (1 - done) / (1 - _DECAY_FROM)))
        weight, bias = loop.optimizer.param_groups
        weight["lr"] = _LEARNING_RATE * warm * factor
        bias["lr"] = _BIAS_RATE * warm * factor
        sharpen(loop.model, done)


def train_tracker(
    rules: PlaceRules,
    heads: dict[str, int],
    features: NDArray[np.float32],
    words: NDArray[np.int64],
    folder: Path,
    *,
    num_steps: int,
    seed: int,
    num_threads: int | None = None,
    on_event: Callable[[Event], None] | None = None,
) -> tuple[TokenClassifier, Fitted]:
    """Train a network to follow places, or resume an interrupted call."""
    model = place_tracker(rules, heads, features, seed)
    codes = _codes(rules.num_contents)
    weight, bias = _nearest(codes)

    def loss(network: TokenClassifier, segments: _Segments) -> Tensor:
        before, after = segments.contents[:, :-1], segments.contents[:, 1:]
        hidden, _ = network.backbone(segments.tokens, (codes[before[:, 0]].unsqueeze(1),))
        logits = functional.linear(hidden.view(*after.shape, _CHANNELS), weight, bias)
        losses = functional.cross_entropy(logits.flatten(0, -2), after.flatten(), reduction="none")
        return (losses.view(after.shape) * (1 + _CHANGED * (before != after))).sum(-1).mean()

    projection = model.backbone.blocks[0].mixer.gate_proj
    assert isinstance(projection, nn.Linear)
    groups = [{"params": [parameter]} for parameter in (projection.weight, projection.bias)]
    fitted = fit(
        model,
        SegmentSampler(words, rules, seed),
        loss,
        folder,
        num_steps=num_steps,
        optimizer=torch.optim.Adam(groups, eps=_EPS),
        evaluate=lambda network: {"alike": alike(network, rules)},
        evaluate_every=20,
        hooks=[_Schedule()],
        clip_norm=_CLIP,
        device="cpu",
        num_threads=num_threads,
        seed=seed,
        settings={"words": list(words.shape)},
        on_event=on_event,
    )
    return model, fitted


class FollowedWords(NamedTuple):
    """Contents of all heads after tokens, and answers: both of shape (words, tokens, heads)."""

    right: NDArray[np.int8]
    answers: NDArray[np.int8]

    @property
    def exact(self) -> NDArray[np.bool_]:
        """Whether all heads are right, shape (words, tokens)."""
        exact: NDArray[np.bool_] = (self.right == self.answers).all(-1)
        return exact


@torch.no_grad()
def follow(model: TokenClassifier, rules: PlaceRules, words: NDArray[np.int64]) -> FollowedWords:
    """Return the answers of a network to words (N, T), piece by piece, beside the right ones."""
    width = max(1, _TOKENS_AT_ONCE // len(words))
    pieces = [words[:, first : first + width] for first in range(0, words.shape[1], width)]
    right, start = [], None
    for piece in pieces:
        contents = rules.contents(piece, start)
        start = contents[:, -1]
        right.append(contents[..., : rules.num_heads].astype(np.int8))
    answers = [
        torch.stack([one.argmax(-1) for one in logits.values()], dim=-1).to(torch.int8)
        for logits in model.eval().in_pieces([torch.from_numpy(piece) for piece in pieces])
    ]
    return FollowedWords(np.concatenate(right, axis=1), torch.cat(answers, dim=1).numpy())
