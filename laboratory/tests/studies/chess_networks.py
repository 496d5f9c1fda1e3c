"""Networks that follow chess, whose weights are set by hand."""

import numpy as np
import torch

from statemix_lab.studies.original_chess import KindReader, OriginalChess
from statemix_lab.studies.place_tracker import place_tracker
from statemix_lab.tasks.chess_moves import (
    HEADS,
    KINDS,
    MOVED,
    PIECES,
    TAKEN,
    all_moves,
    chess_rules,
    features_without_kinds,
    move_features,
    moves_without_kinds,
    rules_without_kinds,
    tokens_without_kinds,
)


def exact_tracker():
    """Gates that are sums over squares and flags, in units of which keeping an entry gets 2."""
    model = place_tracker(chess_rules(), HEADS, move_features(), seed=0)
    projection = model.backbone.blocks[0].mixer.gate_proj
    rules, moves, features = chess_rules(), all_moves(), move_features()
    size = rules.num_places
    with torch.no_grad():
        gates = projection.weight.zero_().view(size, size + 1, -1)
        bias = projection.bias.zero_().view(size, size + 1)
        bias.diagonal().fill_(2)
        side, waiting = 64, len(HEADS)
        bias[side, waiting] = bias[waiting, side] = 4
        for square in range(64):
            gates[:, square, square] += 1
            gates[square, -1, square] += 4
            gates[square, square, 64 + square] -= 3
            for right in range(65, len(HEADS)):
                # Does every move that begins here, or ends here, end the right?
                for part in (square, 64 + square):
                    tokens = np.flatnonzero(features[:, part])
                    if (rules.sources[tokens, right] < 0).all():
                        gates[right, -1, part] += 4
        for token, move in enumerate(moves):
            (*_, special) = np.flatnonzero(features[token])
            if move.promotion:
                gates[:, rules.sources[token, move.end], special] = 1.5
            if move.kind != "plain":
                # The flag does all that happens beside the two squares.
                for place in set(range(64)) - {move.start, move.end}:
                    source = rules.sources[token, place]
                    if source != place:
                        gates[place, source, special] = 4
        projection.weight /= 10
    return model


def exact_original():
    """A network for moves without kinds; see ``exact_tracker`` for the units."""
    rules, features = rules_without_kinds(), features_without_kinds()
    heads = dict.fromkeys((MOVED, TAKEN), len(PIECES))
    first = place_tracker(rules, heads, features, seed=0)
    projection = first.backbone.blocks[0].mixer.gate_proj
    size = rules.num_places
    with torch.no_grad():
        gates = projection.weight.zero_().view(size, size + 1, -1)
        bias = projection.bias.zero_().view(size, size + 1)
        bias.diagonal().fill_(2)
        for square in range(64):
            place = 2 + square
            gates[2:, place, square] += 1
            gates[place, -1, square] += 4
            gates[place, place, 64 + square] -= 3
            gates[0, place, square] = gates[1, place, 64 + square] = 4
        for token, move in enumerate(moves_without_kinds()):
            special = np.flatnonzero(features[token])[2:]
            for place in np.flatnonzero(rules.sources[token, 2:] != np.arange(2, size)) + 2:
                if place == 2 + move.start:
                    continue
                stock = bool(move.promotion)
                if stock or place != 2 + move.end:
                    gates[place, rules.sources[token, place], special] = 1.5 if stock else 4
        projection.weight /= 10
    network = OriginalChess(first, exact_reader(), exact_tracker())
    for tracker in (network.first, network.second):
        tracker.backbone.blocks[0].mixer.gate_temperature = 1 / 32
    return network


def exact_reader():
    """A reader with a unit for each castling, and for each square of a capture en passant."""
    reader, features = KindReader(0), features_without_kinds()
    moved, taken = features.shape[1], features.shape[1] + len(PIECES)
    with torch.no_grad():
        for parameter in reader.parameters():
            parameter.zero_()
        weight, bias = reader.hidden.weight, reader.hidden.bias
        reader.kinds.bias[KINDS.index("plain")] = 2
        units = {}
        for number, move in enumerate(all_moves()):
            if move.kind == "plain":
                continue
            unit = units.setdefault((move.kind, move.end), len(units))
            for feature in np.flatnonzero(features[tokens_without_kinds()[number]]):
                weight[unit, feature] = 1
            if move.kind == "castling":
                pieces, bias[unit] = "Kk", -3
            else:
                pieces, bias[unit] = "Pp", -3
                weight[unit, taken] = 1
            for piece in pieces:
                weight[unit, moved + PIECES.index(piece)] = 1
            reader.kinds.weight[KINDS.index(move.kind), unit] = 4
    return reader
