"""Proofs by structure: blocks that follow the places of a task with too many states to visit."""

import copy

import numpy as np
import torch
from numpy.typing import NDArray

from statemix.errors import RequestError
from statemix.layers import BDLRU
from statemix.models import ReadoutModel, TokenClassifier
from statemix.place_rules import PlaceRules
from statemix.proofs.certificate import Certificate, NetworkForm
from statemix.proofs.certificate_tables import EntryRules, read_rules
from statemix.proofs.hardening import can_prune, harden
from statemix.proofs.horizon import Horizon
from statemix.proofs.place_readouts import Followed, Reading, by_block
from statemix.proofs.product_search import SearchResult
from statemix.proofs.ties import watch_gaps


@torch.no_grad()
def prove_by_structure(model: ReadoutModel, rules: PlaceRules) -> Certificate:
    r"""Prove that a model tells the contents of all places after words of every length.

    With gates of 0 and 1, each token lets an entry copy an entry or load a value. An entry
    *follows* a place if this agrees with what every token does to the place. Then there is a code

    .. math:: h_e = \mathrm{code}_e(c(p))

    for the content c(p) of the place p, before the first token and, by induction, after every
    token. Entries that never change follow a place of their own, which no token moves. The network
    that is proven does not read the entries that follow no place. The readout of a place p is right
    if, for all contents c and wrong classes c',

    .. math:: \sum_{e \to p} w_e\,\mathrm{code}_e(c) +
        \sum_{q \ne p} \min_{d} \sum_{e \to q} w_e\,\mathrm{code}_e(d) + b > 0

    where w and b are the differences of the two rows of the readout, and d are the contents of
    place q that words lead to, other than c if tokens only permute distinct contents. A last norm
    divides all logits but their biases by one number r, whose bounds follow from those of the
    entries. If the trained readout is not proven, each place's readout is fitted again, to its own
    entries alone. No state is visited, so their number does not matter.

    Args:
        model: a model of one BD-LRU with softmax gates, with the heads of the places.
        rules: the places, with the model's tokens.

    Returns:
        The certificate: proven, or open for a reason.

    Raises:
        RequestError: if the model has other tokens or heads, or another layer.
    """
    mixer = model.backbone.blocks[0].mixer
    if (
        not isinstance(model, TokenClassifier)
        or not can_prune(model)
        or getattr(mixer, "gate", None) != "softmax"
    ):
        raise RequestError("model must be one BD-LRU layer with gate='softmax'")
    heads = list(model.heads.items())
    if model.backbone.vocab_size != rules.num_tokens or len(heads) != rules.num_heads:
        raise RequestError(
            f"model must have {rules.num_tokens} tokens and {rules.num_heads} heads, got "
            f"{model.backbone.vocab_size} and {len(heads)}"
        )
    hard = harden(model).cpu().eval()
    layer = hard.backbone.blocks[0].mixer
    assert isinstance(hard, TokenClassifier)
    assert isinstance(layer, BDLRU)
    entries = read_rules(hard)
    followed = _follow(entries, rules)
    used = followed.places >= 0
    tracks = used.reshape(layer.num_blocks, layer.block_size)
    by_block(layer)[torch.from_numpy(~tracks)] = 0
    tracking = tuple(np.flatnonzero(tracks.any(1)).tolist())
    with watch_gaps(hard, tracking) as gaps:
        hard.extend(torch.arange(rules.num_tokens).unsqueeze(1))
    network: NetworkForm = "pruned"
    margin, reason = None, gaps.doubt
    if not reason and hard.backbone.blocks[0].channel_mixer is not None:
        reason = "the bound is for models without a channel mixer"
    if not reason:
        reading = Reading.of(hard, layer, rules, entries, followed)
        margin, reason = reading.margin(hard)
        if reason and reading.lacks is None:
            again = copy.deepcopy(hard)
            reading.refit(again)
            refitted, fails = reading.margin(again)
            if not fails:
                hard, network, margin, reason = again, "refitted", refitted, ""
    return Certificate(
        SearchResult("open" if reason else "proven", 0, margin, reason=reason),
        network,
        hard,
        heads[0][0],
        Horizon(None, "the bound is for tasks with an automaton"),
        tracking,
        layer.num_blocks,
        gaps.finite,
        "structure",
    )


def _follow(entries: EntryRules, rules: PlaceRules) -> Followed:
    """Find the largest set of pairs of an entry and a place that agree under every token."""
    rules = _with_still_place(rules)
    agree = np.ones((len(entries.start), rules.num_places), dtype=np.bool_)
    while True:
        _keep_what_moves_alike(agree, entries, rules)
        codes = _codes(entries, rules, agree)
        alike = agree & (codes > _CONFLICT).all(-1)
        if (alike == agree).all():
            break
        agree = alike
    places = np.full(len(agree), -1)
    followers = np.zeros(rules.num_places)
    for entry in np.flatnonzero(agree.any(1)):
        # An entry that never changes follows every place. Of several others, the one with the
        # fewest followers needs it most.
        still = agree[entry, -1]
        places[entry] = (
            rules.num_places - 1 if still else np.where(agree[entry], followers, np.inf).argmin()
        )
        followers[places[entry]] += 1
    return Followed(places, codes[np.arange(len(places)), places])


def _keep_what_moves_alike(
    agree: NDArray[np.bool_], entries: EntryRules, rules: PlaceRules
) -> None:
    """Reduce pairs to the largest set that tokens lead back to, in place."""
    before = None
    while before is None or (agree != before).any():
        before = agree.copy()
        for entry_sources, place_sources in zip(entries.sources, rules.sources, strict=True):
            copies, moves = entry_sources >= 0, place_sources >= 0
            paired = agree[
                np.ix_(np.where(copies, entry_sources, 0), np.where(moves, place_sources, 0))
            ]
            agree &= np.where(copies[:, None] & moves, paired, copies[:, None] == moves)


def _with_still_place(rules: PlaceRules) -> PlaceRules:
    """Return the rules with one more place, which always holds content 0."""
    itself = np.full((rules.num_tokens, 1), rules.num_places)
    return PlaceRules(
        np.append(rules.start, 0), np.hstack([rules.sources, itself]), rules.num_contents
    )


# Code of a content that never comes to a place, and of one that has two codes.
_UNSEEN, _CONFLICT = -1, -2


def _codes(entries: EntryRules, rules: PlaceRules, agree: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the code of each content for each pair, shape (entries, places, contents)."""
    codes = np.full((*agree.shape, rules.num_contents), _UNSEEN, dtype=np.int64)
    every = np.arange(rules.num_places)
    codes[:, every, rules.start] = np.where(agree, entries.start[:, None], _UNSEEN)
    for entry_sources, place_sources in zip(entries.sources, rules.sources, strict=True):
        for place in np.flatnonzero(place_sources < 0):
            loads = np.flatnonzero((entry_sources < 0) & agree[:, place])
            content = -1 - place_sources[place]
            codes[loads, place, content] = _joined(
                codes[loads, place, content], -1 - entry_sources[loads]
            )
    # A few pairs agree, and most do not.
    pairs = np.nonzero(agree)
    sources = [
        (one[pairs[0]], other[pairs[1]])
        for one, other in zip(entries.sources, rules.sources, strict=True)
    ]
    while True:
        before = codes.copy()
        for from_entry, from_place in sources:
            came = codes[from_entry, from_place]
            came[(from_entry < 0) | (from_place < 0)] = _UNSEEN
            codes[pairs] = _joined(codes[pairs], came)
        if (codes == before).all():
            return codes


def _joined(one: NDArray[np.int64], other: NDArray[np.int64]) -> NDArray[np.int64]:
    different = (one >= 0) & (other >= 0) & (one != other)
    conflict = different | (one == _CONFLICT) | (other == _CONFLICT)
    return np.where(conflict, _CONFLICT, np.maximum(one, other))
