"""What readouts get from the entries that follow places, and how far right answers lead."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from statemix.layers import BDLRU
from statemix.models import ReadoutModel, TokenClassifier
from statemix.place_rules import PlaceRules
from statemix.proofs.certificate_tables import EntryRules
from statemix.proofs.hardening import fit_readout

# Terms of the relative error of a logit beyond those of its sums.
_ROUNDINGS = 64


def by_block(layer: BDLRU) -> Tensor:
    """Return the output projection as a view, shape (num_blocks, m, d, C)."""
    m, channels = layer.block_size, layer.value_channels
    return layer.out_proj.weight.view(-1, m, channels, layer.num_blocks).permute(3, 1, 0, 2)


class Followed(NamedTuple):
    """Which place each entry follows.

    Attributes:
        places: a place for each entry, -1 where it follows none, shape (entries,). The number of
            places stands for one that no token moves.
        contents: for each place, the contents that come to it, once for each of their codes, shape
            (codes,).
        codes: for each place, the numbers of the values that its entries then hold, shape
            (codes, entries of the place).
    """

    places: NDArray[np.int64]
    contents: list[NDArray[np.int64]]
    codes: list[NDArray[np.int64]]


class LastNorm(NamedTuple):
    """What happens between the layer and the readouts: z -> gain * (z - mean) / r + shift.

    The mean is subtracted where it is centred, and r is the root of the mean square plus ``eps``,
    or 1 if that is None. Gain and shift have shape (d,).
    """

    gain: NDArray[np.float64]
    shift: NDArray[np.float64]
    centred: bool
    eps: float | None

    @classmethod
    def of(cls, model: ReadoutModel) -> "LastNorm":
        norm, width = model.backbone.final_norm, model.backbone.embedding.embedding_dim
        if isinstance(norm, nn.Identity):
            return cls(np.ones(width), np.zeros(width), centred=False, eps=None)
        assert isinstance(norm, nn.RMSNorm | nn.LayerNorm)
        gain = norm.weight.detach().double().numpy()
        eps = norm.eps if norm.eps is not None else torch.finfo(norm.weight.dtype).eps
        if isinstance(norm, nn.LayerNorm):
            shift = norm.bias.detach().double().numpy()
            return cls(gain, shift, centred=True, eps=eps)
        return cls(gain, np.zeros(width), centred=False, eps=eps)

    def folded_into(self, readout: nn.Module) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return W and b for which a linear readout of the norm of z gives W z / r + b."""
        assert isinstance(readout, nn.Linear)
        weight = readout.weight.detach().double().numpy()
        bias = readout.bias.detach().double().numpy() + weight @ self.shift
        weight = weight * self.gain
        return weight - weight.mean(1, keepdims=True) if self.centred else weight, bias


@dataclass(frozen=True)
class Reading:
    """What the readouts get from the entries that follow places.

    Attributes:
        places: place of each entry that is read.
        contents, codes: as in :class:`Followed`.
        added: what an entry with each value adds to z, shape (entries, values, d).
        sizes: sums of magnitudes that these are the sums of, same shape.
        tokens: what tokens add to z, shape (tokens, d).
        norm: what is done to z.
        num_places: number of places; as a place of an entry, the one that no token moves.
        num_heads: number of readouts, which read the first places.
        distinct: whether all contents are at one place each.
        rounding: relative error of a logit.
    """

    places: NDArray[np.int64]
    contents: list[NDArray[np.int64]]
    codes: list[NDArray[np.int64]]
    added: NDArray[np.float64]
    sizes: NDArray[np.float64]
    tokens: NDArray[np.float64]
    norm: LastNorm
    num_places: int
    num_heads: int
    distinct: bool
    rounding: float

    @classmethod
    def of(
        cls,
        hard: TokenClassifier,
        layer: BDLRU,
        rules: PlaceRules,
        entries: EntryRules,
        followed: Followed,
    ) -> "Reading":
        used = followed.places >= 0
        out = by_block(layer).flatten(0, 1)[torch.from_numpy(used)].double().numpy()
        tokens = hard.backbone.embedding.weight[: rules.num_tokens].double().numpy()
        permutes = (np.sort(rules.sources, axis=1) == np.arange(rules.num_places)).all()
        weight = layer.out_proj.weight
        return cls(
            followed.places[used],
            followed.contents,
            followed.codes,
            np.einsum("edc,vc->evd", out, entries.values),
            np.einsum("edc,vc->evd", np.abs(out), np.abs(entries.values)),
            tokens if hard.backbone.blocks[0].residual else np.zeros_like(tokens),
            LastNorm.of(hard),
            rules.num_places,
            rules.num_heads,
            bool(permutes) and len(set(rules.start.tolist())) == rules.num_places,
            (sum(weight.shape) + _ROUNDINGS) * torch.finfo(weight.dtype).eps / 2,
        )

    @property
    def lacks(self) -> int | None:
        """The first place with a readout that no entry follows; None if there is none."""
        return min(set(range(self.num_heads)) - set(self.places.tolist()), default=None)

    def entries_of(self, place: int) -> NDArray[np.int64]:
        """Return the entries that follow a place."""
        return np.flatnonzero(self.places == place)

    def sums(self, numbers: NDArray[np.float64], place: int) -> NDArray[np.float64]:
        """Add up numbers (entries, values, ...) of a place's entries, for each of its codes."""
        total: NDArray[np.float64] = numbers[self.entries_of(place), self.codes[place]].sum(1)
        return total

    @cached_property
    def bounds(self) -> tuple[float, float]:
        """The least and the largest r."""
        if self.norm.eps is None:
            return 1.0, 1.0
        low, high = self.tokens.min(0), self.tokens.max(0)
        for place in set(self.places.tolist()):
            sums = self.sums(self.added, place)
            low, high = low + sums.min(0), high + sums.max(0)
        far = np.maximum(np.abs(low), np.abs(high))
        near = np.where((low <= 0) & (high >= 0), 0.0, np.minimum(np.abs(low), np.abs(high)))
        # A centred vector may be shorter than its entries suggest.
        least = 0.0 if self.norm.centred else float((near**2).mean())
        return math.sqrt(least + self.norm.eps), math.sqrt(float((far**2).mean()) + self.norm.eps)

    def margin(self, hard: TokenClassifier) -> tuple[float | None, str]:
        """Return the least lead of a right logit that is proven, and why the proof fails or ""."""
        if self.lacks is not None:
            return None, f"no entry follows place {self.lacks + 1}"
        (least, most), smallest, followed = self.bounds, math.inf, set(self.places.tolist())
        for place, head in enumerate(hard.heads):
            weight, bias = self.norm.folded_into(hard.readouts[head])
            score, of_tokens = self.added @ weight.T, self.tokens @ weight.T
            size = self.sizes @ np.abs(weight).T
            # Sums of magnitudes bound what rounding adds to a logit.
            slack = self.rounding * (
                (np.abs(self.tokens) @ np.abs(weight).T).max()
                + sum(self.sums(size, other).max() for other in followed)
                + most * np.abs(bias).max()
            )
            others = {other: self.sums(score, other) for other in followed - {place}}
            for content, fixed in zip(self.contents[place], self.sums(score, place), strict=True):
                lead = fixed[content] - fixed - 2 * slack
                lead += (of_tokens[:, [content]] - of_tokens).min(0)
                for other, sums in others.items():
                    if self.distinct and other < self.num_places:
                        sums = sums[self.contents[other] != content]
                    lead += (sums[:, [content]] - sums).min(0)
                differences = bias[content] - bias
                lead += np.where(differences < 0, most, least) * differences
                lead[content] = math.inf
                worst, wrong = float(lead.min()), int(lead.argmin())
                if not worst > 0:
                    said = f"class {wrong} of {head} is not proven to stay below class {content}"
                    return None, f"{said}: the bound is {worst:.2g}"
                smallest = min(smallest, worst / most)
        return smallest, ""

    def refit(self, hard: TokenClassifier) -> None:
        """Let each readout read its own place alone.

        The entries of the place are read out of z by least squares, and the classes out of their
        values by logistic regression. Its bias is read out of z, too, from what never changes or
        from the tokens. So r divides all logits, and no class depends on r.
        """
        # Directions that the values of each entry span.
        spans = [np.linalg.svd(added, full_matrices=False) for added in self.added]
        bases = [span.Vh[1e-9 * max(span.S[0], 1e-30) < span.S] for span in spans]
        whole = np.vstack([*bases, self.tokens])
        if self.norm.centred:
            whole = whole - whole.mean(1, keepdims=True)
        dual = np.linalg.pinv(whole)
        owners = np.repeat(np.arange(len(bases)), [len(basis) for basis in bases])
        still = self.entries_of(self.num_places)
        one = dual[:, len(owners) :].sum(1)
        if still.size:
            reads = dual[:, np.flatnonzero(np.isin(owners, still))]
            constant = self.sums(self.added, self.num_places)[0] @ reads
            one = reads @ constant / (constant @ constant)
        has_one = bool(one.any())
        for place, head in enumerate(hard.heads):
            reads = dual[:, np.flatnonzero(np.isin(owners, self.entries_of(place)))]
            features = self.sums(self.added, place) @ reads
            scale = np.abs(features).max()
            fit = nn.Linear(features.shape[1], hard.heads[head], dtype=torch.float64)
            nn.init.zeros_(fit.weight)
            nn.init.zeros_(fit.bias)
            x, y = torch.from_numpy(features / scale), torch.from_numpy(self.contents[place])
            fit_readout(fit, x, y)
            bias = fit.bias.detach().numpy()
            read = fit.weight.detach().numpy() @ (reads / scale).T
            if has_one:
                read, bias = read + bias[:, None] * one, np.zeros_like(bias)
            read = read / np.where(self.norm.gain == 0, 1.0, self.norm.gain)
            readout = hard.readouts[head]
            assert isinstance(readout, nn.Linear)
            readout.weight.copy_(torch.from_numpy(read))
            readout.bias.copy_(torch.from_numpy(bias - read @ self.norm.shift))
