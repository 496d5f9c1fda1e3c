"""Proofs by structure: blocks that follow the places of a task with too many states to visit."""

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from statemix.automaton import Automaton, HasAutomaton
from statemix.errors import RequestError
from statemix.layers import BDLRU
from statemix.models import ReadoutModel, TokenClassifier
from statemix.place_rules import HasPlaces, PlaceRules
from statemix.proofs.certificate import Certificate, NetworkForm, prove
from statemix.proofs.certificate_tables import EntryRules, read_rules
from statemix.proofs.check_certificate import digest
from statemix.proofs.hardening import (
    ROWS,
    can_harden,
    fixed_batches,
    harden,
    only_layer,
    prune,
    refit,
    watch_gaps,
)
from statemix.proofs.horizon import Horizon
from statemix.proofs.place_readouts import Followed, Reading, by_block
from statemix.proofs.product_search import SearchResult, search
from statemix.proofs.stepping import in_evaluation_mode

_NO_COPY = "a step of the network is no copy of entries and values"
# Combinations of values that entries of a place hold together; more would take minutes.
_MOST_COMBINATIONS = 1_000_000


@torch.no_grad()
@in_evaluation_mode
def prove_by_structure(model: ReadoutModel, rules: PlaceRules) -> Certificate:
    r"""Prove that a model names the contents of all places after words of every length.

    With gates of 0 and 1, each token lets an entry copy an entry or load a value. An entry
    *follows* a place if this agrees with what every token does to the place, and its value tells
    the content of the place. The entries that follow a place p then hold together a code

    .. math:: (h_e)_{e \to p} \in \mathrm{Codes}_p(c(p))

    of the content c(p), before the first token and, by induction, after every token. A content may
    have several codes, such as one that it has in the beginning alone. Entries that never change
    follow a place of their own, which no token moves. The network that is proven does not read the
    entries that follow no place. The readout of a place p is right if, for all contents c and wrong
    classes c',

    .. math:: \min_{h \in \mathrm{Codes}_p(c)} \sum_{e \to p} w_e h_e +
        \sum_{q \ne p} \min_{d} \min_{h \in \mathrm{Codes}_q(d)} \sum_{e \to q} w_e h_e + b > 0

    where w and b are the differences of the two rows of the readout, and d are the contents of
    place q that words lead to, other than c if tokens only permute distinct contents. A last norm
    divides all logits but their biases by one number r, whose bounds follow from those of the
    entries. If the trained readout is not proven, each place's readout is fitted again, to its own
    entries alone. No state is visited, so their number does not matter.

    Args:
        model: a model with the heads of the places. Only a model of one BD-LRU layer with softmax
            gates can be proven.
        rules: the places, with the model's tokens.

    Returns:
        The certificate: proven, or open for a reason, such as another layer.
    """
    head, *others = model.heads
    if model.backbone.vocab_size != rules.num_tokens or 1 + len(others) != rules.num_heads:
        raise RequestError(
            f"model must have {rules.num_tokens} tokens and {rules.num_heads} heads, got "
            f"{model.backbone.vocab_size} and {1 + len(others)}"
        )
    without_bound = Horizon(None, "the bound is for tasks with an automaton")
    mixer = model.backbone.blocks[0].mixer
    if only_layer(model) is None or getattr(mixer, "gate", None) != "softmax":
        reason = "a proof by structure needs one BD-LRU layer with gate='softmax'"
        result = SearchResult("open", 0, None, reason=reason)
        return Certificate(result, "as trained", model, head, without_bound, method="structure")
    hard = harden(model).cpu().eval()
    layer = hard.backbone.blocks[0].mixer
    assert isinstance(hard, TokenClassifier)
    assert isinstance(layer, BDLRU)
    entries = read_rules(hard, rules.num_tokens)
    followed = _follow(entries, _with_still_place(rules))
    used = followed.places >= 0
    tracks = used.reshape(layer.num_blocks, layer.block_size)
    by_block(layer)[torch.from_numpy(~tracks)] = 0
    tracking = tuple(np.flatnonzero(tracks.any(1)).tolist())
    with watch_gaps(hard, tracking) as gaps:
        hard.extend(torch.arange(rules.num_tokens).unsqueeze(1))
    network: NetworkForm = "pruned"
    margin, reason = None, gaps.doubt
    if not reason and (hard.backbone.blocks[0].channel_mixer or len(hard.readout_mlp)):
        reason = "the bound is for models without MLPs"
    # Gates that are equal share the 1, which rules do not show.
    if not reason and not _steps_as(hard, layer, entries):
        reason = _NO_COPY
    if not reason:
        reading = Reading.of(hard, layer, rules, entries, followed)
        margin, reason = reading.margin(hard)
        if reason and reading.lacks is None:
            again = copy.deepcopy(hard)
            reading.refit(again)
            refitted, fails = reading.margin(again)
            if not fails:
                hard, network, margin, reason = again, "refitted", refitted, ""
    result = SearchResult("open" if reason else "proven", 0, margin, reason=reason)
    kept = tracking, layer.num_blocks, gaps.finite
    return Certificate(result, network, hard, head, without_bound, *kept, "structure")


@torch.no_grad()
def structure_tables(network: nn.Module, rules: PlaceRules) -> dict[str, Any] | str:
    """Read off what tokens do to the entries of a network that is proven by structure.

    ``docs/certificates.md`` describes the tables. What each token does is compared with a step of
    the network; if they differ, the reason is returned why there are no tables.
    """
    assert isinstance(network, TokenClassifier)
    entries = read_rules(network, rules.num_tokens)
    agree, combined = _agreement(entries, _with_still_place(rules))
    layer = network.backbone.blocks[0].mixer
    assert isinstance(layer, BDLRU)
    if not _steps_as(network, layer, entries):
        return _NO_COPY
    places = range(rules.num_places)
    tables = {
        "format": 2,
        "values": len(entries.values),
        "start": entries.start.tolist(),
        "letters": entries.sources.tolist(),
        "places": {"start": rules.start.tolist(), "letters": rules.sources.tolist()},
        "heads": rules.num_heads,
        # An entry may follow several places that never hold different contents.
        "followers": [np.flatnonzero(agree[:, place]).tolist() for place in places],
        "codes": [combined[place].tolist() for place in places],
    }
    return {**tables, "sha256": digest(tables)}


def _steps_as(network: TokenClassifier, layer: BDLRU, entries: EntryRules) -> bool:
    """Return whether every token copies and loads what the rules say, in a step of the network."""
    like, num_tokens = layer.init_state(1), len(entries.sources)
    # Every entry holds a number of its own, which no value is.
    size = np.abs(entries.values).max(initial=0.0)
    held = np.ceil(size) + 1 + np.arange(len(entries.start), dtype=np.float64)
    before = np.broadcast_to(held[:, None], (len(held), layer.value_channels))
    state = torch.from_numpy(before.copy()).to(like).reshape(like.shape)
    reached = []
    for tokens, used in fixed_batches(num_tokens, network.device):
        _, (after,) = network.extend(tokens.unsqueeze(1), (state.expand(ROWS, *like.shape[1:]),))
        reached.append(after[:used])
    found = torch.cat(reached).double().cpu().numpy().reshape(num_tokens, len(held), -1)
    loads = entries.sources < 0
    loaded = entries.values[np.where(loads, -1 - entries.sources, 0)]
    copied = before[np.where(loads, 0, entries.sources)]
    expected = np.where(loads[..., None], loaded, copied)
    return np.array_equal(found, expected)


def _agreement(
    entries: EntryRules, rules: PlaceRules, *, several: bool = True
) -> tuple[NDArray[np.bool_], list[NDArray[np.int64]]]:
    """Find a large set of pairs of an entry and a place that agree under every token.

    The last place is one that no token moves. ``several`` tells whether contents may have several
    values. Returns which entries agree with which places, shape (entries, places), and what words
    lead to at each place, as in :func:`_combinations`.
    """
    agree = np.ones((len(entries.start), rules.num_places), dtype=np.bool_)
    fits = ~agree
    while not fits.all():
        # The largest set of pairs that tokens lead back to.
        before = None
        while before is None or (agree != before).any():
            before = agree.copy()
            for of_entries, of_places in zip(entries.sources, rules.sources, strict=True):
                copies, moves = of_entries >= 0, of_places >= 0
                # Where something is loaded, any index will do.
                paired = agree[np.ix_(np.maximum(of_entries, 0), np.maximum(of_places, 0))]
                agree &= np.where(copies[:, None] & moves, paired, copies[:, None] == moves)
        pairs = np.argwhere(agree)
        found = _reached(entries, rules, pairs)
        # Each content has one value, which may be that of other contents. Or each value stands for
        # one content, which may have several: entries that copy one began with other values.
        fits = (found.sum(2) <= 1).all(1)
        if several:
            fits |= (found.sum(1) <= 1).all(1) & (found.any(2).sum(1) > 1)
        agree[tuple(pairs[~fits].T)] = False
    # Without several, each content has one combination.
    combined = _combinations(entries, rules, agree, _MOST_COMBINATIONS if several else math.inf)
    return _agreement(entries, rules, several=False) if combined is None else (agree, combined)


def _follow(entries: EntryRules, rules: PlaceRules) -> Followed:
    """Choose one place for each entry among those that the entry agrees with."""
    agree, combined = _agreement(entries, rules)
    places = np.full(len(agree), -1)
    followers = np.zeros(rules.num_places)
    for entry in np.flatnonzero(agree.any(1)):
        # An entry that never changes follows every place. Of several others, the one with the
        # fewest followers needs it most.
        fewest = np.where(agree[entry], followers, np.inf).argmin()
        places[entry] = rules.num_places - 1 if agree[entry, -1] else fewest
        followers[places[entry]] += 1
    tables = [
        np.unique(rows[:, np.append(True, places[agree[:, place]] == place)], axis=0)
        for place, rows in enumerate(combined)
    ]
    return Followed(places, [table[:, 0] for table in tables], [table[:, 1:] for table in tables])


def _with_still_place(rules: PlaceRules) -> PlaceRules:
    """Return the rules with one more place, which always holds content 0."""
    itself = np.full((rules.num_tokens, 1), rules.num_places)
    return PlaceRules(
        np.append(rules.start, 0), np.hstack([rules.sources, itself]), rules.num_contents
    )


def _reached(entries: EntryRules, rules: PlaceRules, pairs: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which contents and values pairs hold together, shape (pairs, contents, values)."""
    found = np.zeros((len(pairs), rules.num_contents, len(entries.values)), dtype=np.bool_)
    numbers = np.zeros((len(entries.start), rules.num_places), dtype=np.int64)
    numbers[tuple(pairs.T)] = every = np.arange(len(pairs))
    entry, place = pairs.T
    found[every, rules.start[place], entries.start[entry]] = True
    moves = []
    for entry_sources, place_sources in zip(entries.sources, rules.sources, strict=True):
        from_entry, from_place = entry_sources[entry], place_sources[place]
        loads = from_entry < 0
        found[every[loads], -1 - from_place[loads], -1 - from_entry[loads]] = True
        copied = numbers[np.where(loads, 0, from_entry), np.where(loads, 0, from_place)]
        sources = np.where(loads, every, copied)
        changed = np.flatnonzero(sources != every)
        moves.append((changed, sources[changed]))
    total = None
    while total != (total := int(found.sum())):
        for changed, sources in moves:
            found[changed] |= found[sources]
    return found


def _combinations(
    entries: EntryRules, rules: PlaceRules, agree: NDArray[np.bool_], most: float
) -> list[NDArray[np.int64]] | None:
    """Return for each place what words lead to; None if that is more than ``most`` in all.

    Arrays have shape (combinations, 1 + entries that agree): the content, and values of entries.
    """
    members = [np.flatnonzero(column) for column in agree.T]
    first = zip(rules.start.tolist(), members, strict=True)
    found = {(n, (content, *entries.start[of].tolist())) for n, (content, of) in enumerate(first)}
    moves: list[set[tuple[int, tuple[int, ...]]]] = [set() for _ in members]
    for entry_sources, place_sources in zip(entries.sources, rules.sources, strict=True):
        for place, (of, source) in enumerate(zip(members, place_sources.tolist(), strict=True)):
            from_entries = entry_sources[of]
            if source < 0:
                found.add((place, (-1 - source, *(-1 - from_entries).tolist())))
            else:
                # Column 0 is the content.
                columns = np.searchsorted(members[source], from_entries) + 1
                moves[source].add((place, (0, *columns.tolist())))
    new = list(found)
    while new:
        source, row = new.pop()
        for place, columns in moves[source]:
            after = place, tuple(row[column] for column in columns)
            if after not in found:
                found.add(after)
                new.append(after)
        if len(found) > most:
            return None
    rows: list[list[tuple[int, ...]]] = [[] for _ in members]
    for place, row in found:
        rows[place].append(row)
    return [np.array(sorted(table), dtype=np.int64) for table in rows]


# More would take minutes for every head.
_MOST_ARRANGEMENTS, _MOST_PAIRS = 1000, 5000


@in_evaluation_mode
def prove_places(
    model: ReadoutModel,
    rules: PlaceRules,
    *,
    max_pairs: int = 100_000,
    on_progress: Callable[[int], None] | None = None,
) -> Certificate:
    """Prove that a model names the contents of all places after words of every length.

    A network may be right though its entries follow no places: seven points of a plane are known
    from its seven lines, too. If :func:`prove_by_structure` does not prove the network, and words
    lead to at most 1,000 arrangements (the contents of all places together), these are the states
    of an automaton for each place. All heads of a network are then searched, and the networks are
    those that :func:`prove` tries: the trained one, if its gates cannot be hardened.

    Args:
        model: any model with the heads of the places.
        rules: the places, with the model's tokens.
        max_pairs: as in :func:`prove`, but at most 5,000.
        on_progress: as in :func:`prove`.

    Returns:
        The certificate by structure, unless a search proves all heads of a network, or refutes a
        head of the last one. For a model that no structure can prove, it is that of the search. The
        certificate of a search that proves has the most pairs and the least margin of all heads.
    """
    by_structure = prove_by_structure(model, rules)
    automata = None if by_structure.verdict == "proven" else place_automata(rules)
    if automata is None:
        return by_structure
    heads = dict(zip(model.heads, automata, strict=True))
    for name, network, tracking in _candidates(model, heads):
        with watch_gaps(network, tracking) as gaps:
            most = min(max_pairs, _MOST_PAIRS)
            results = {
                head: search(network, automaton, head=head, max_pairs=most, on_progress=on_progress)
                for head, automaton in heads.items()
            }
        verdicts = {result.verdict for result in results.values()}
        last = name in ("hardened", "as trained")
        if verdicts == {"proven"}:
            if gaps.doubt:
                continue
            result = min(results.values(), key=lambda result: result.margin or 0.0)
            result = replace(result, pairs=max(result.pairs for result in results.values()))
            head = by_structure.head
        elif last and ("refuted" in verdicts or by_structure.network == "as trained"):
            # A wrong answer says more than a search that has not ended.
            order = ["refuted", "open", "proven"]
            head, result = min(results.items(), key=lambda item: order.index(item[1].verdict))
        else:
            continue
        return replace(
            by_structure,
            result=result,
            network=name,
            model=network,
            head=head,
            tracking=tracking,
            gate_margin=gaps.finite,
            method="search",
        )
    return by_structure


def _candidates(
    model: ReadoutModel, heads: Mapping[str, Automaton]
) -> Iterator[tuple[NetworkForm, nn.Module, tuple[int, ...] | None]]:
    """Yield networks to search and the blocks that they keep, as :func:`prove` tries them."""
    if not can_harden(model):
        yield "as trained", model, None
        return
    hard = harden(model).cpu().eval()
    if only_layer(hard) is not None:
        first, *_ = heads.values()
        # Which blocks track depends on the transitions alone, which all heads share.
        cut = prune(hard, first)
        yield "pruned", cut.model, cut.tracking
        if cut.varying:
            fitted = cut.model
            for head, automaton in heads.items():
                fitted = refit(fitted, automaton, head)
            yield "refitted", fitted, cut.tracking
    yield "hardened", hard, None


def place_automata(rules: PlaceRules) -> list[Automaton] | None:
    """Return an automaton for each head, whose states are the arrangements that words lead to.

    Returns None if there are more than 1,000 arrangements.
    """
    numbers = {tuple(rules.start.tolist()): 0}
    reached: list[NDArray[np.int64]] = [rules.start]
    every = np.arange(rules.num_tokens)[:, None]
    after: list[NDArray[np.int64]] = []
    while len(after) < len(reached):
        start = np.tile(reached[len(after)], (rules.num_tokens, 1))
        after.append(rules.contents(every, start)[:, 0])
        for contents in after[-1]:
            if numbers.setdefault(tuple(contents.tolist()), len(numbers)) == len(reached):
                reached.append(contents)
        if len(reached) > _MOST_ARRANGEMENTS:
            return None
    table = np.stack(after)
    transitions = np.array([[numbers[tuple(row)] for row in rows] for rows in table.tolist()])
    heads = np.ascontiguousarray(np.moveaxis(table, -1, 0)[: rules.num_heads])
    return [Automaton(0, transitions, outputs) for outputs in heads]


def prove_task(
    model: ReadoutModel,
    task: HasAutomaton | HasPlaces,
    *,
    soft: bool = False,
    max_pairs: int = 100_000,
    on_progress: Callable[[int], None] | None = None,
) -> Certificate:
    """Prove or refute a network on a task, by :func:`prove` or :func:`prove_places`.

    Args:
        model: network with the tokens and the heads of the task.
        task: a task with an automaton or with places.
        soft: as in :func:`prove`; refused for a task with places.
        max_pairs: as in :func:`prove`.
        on_progress: as in :func:`prove`.
    """
    if isinstance(task, HasAutomaton):
        automaton = task.automaton()
        return prove(model, automaton, soft=soft, max_pairs=max_pairs, on_progress=on_progress)
    if soft:
        raise RequestError("soft must be absent for a task with places, whose proof hardens")
    return prove_places(model, task.places(), max_pairs=max_pairs, on_progress=on_progress)
