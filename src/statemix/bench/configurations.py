"""Every configuration of the Triton kernels that can be chosen, and what of it may spill.

Threads of all of them read as many steps at once as plan.py says. They read fewer where a sequence
or a forced chunk is shorter than these, or a forced chunk is no multiple: such kernels are parts of
those that are listed.
"""

import math
import random
from collections.abc import Iterator
from itertools import product, zip_longest

from statemix.bench.compiled import DTYPES, OPERATORS, TARGETS, Variant, families_of
from statemix.bench.predicted import CARRIES, KERNELS
from statemix.ops.dispatch import GIVEN
from statemix.ops.triton.plan import FULL_SIZE

# Units whose largest powers of two, up to 16, are 16, 8, 4, 2 and 1.
_WIDTHS = (192, 200, 196, 194, 191)


def configurations() -> Iterator[Variant]:
    """Yield every configuration that can be chosen at m from 1 to 16.

    They come in rounds: each round has each kernel, family, m and target at most once, with other
    choices of dtype, packing, ragged chunks, temperature and width, so that a part of the list has
    something of everything. The order is always the same.
    """
    kinds = product(range(1, 17), KERNELS, OPERATORS, TARGETS)
    columns = (
        _options(operator, kernel, size, gate, target)
        for size, kernel, operator, target in kinds
        for gate in (("softmax",) if kernel in CARRIES else families_of(operator))
    )
    for found in zip_longest(*columns):
        yield from (variant for variant in found if variant is not None)


def _options(operator: str, kernel: str, size: int, gate: str, target: str) -> Iterator[Variant]:
    """Yield a kernel with all choices that make another one of it, in an order of its own."""
    local = kernel.startswith("local")
    choices = list(
        product(
            ("float32", "float64") if kernel in CARRIES else DTYPES,
            # Whether packed and ragged: a chunk of packed sequences may end anywhere.
            ((False, False), (False, True), (True, True))
            if local or kernel == "chunk_backward"
            else ((False, False), (True, False)),
            (False,) if kernel in CARRIES or gate == GIVEN else (True, False),
            _WIDTHS[:1] if kernel in CARRIES else _WIDTHS,
            (False, True) if local and size <= FULL_SIZE else (False,),
        )
    )
    random.Random(f"{operator} {kernel} {size} {gate} {target}").shuffle(choices)
    for dtype, (packed, ragged), tempered, width, full in choices:
        yield Variant(
            operator, kernel, size, dtype, gate, target,
            packed=packed, ragged=ragged, tempered=tempered, width=width,
            full=full,
        )  # fmt: skip


def spill_limit(variant: Variant) -> float:
    """Return how many bytes of registers a variant is known to spill at most on sm_90.

    In float64, the local scans backward of large blocks have more numbers in registers than fit,
    even with one lane of a thread. Widths that are no multiples of 16 take some registers more for
    addresses.
    """
    if (variant.dtype, variant.kernel) == ("float64", "local_backward") and variant.size > 8:
        return math.inf
    return 16 if variant.width % 16 else 0
