"""What the Triton kernels of all operators share: tiles of rows and lanes, and loads of tuples.

A program handles a tile of R rows and L lanes: a row is a chunk of time of one sequence, a lane is
a block or channel. All tensors have lanes innermost in memory.
"""

import triton
import triton.language as tl


@triton.jit
def tile(num_rows, H, R: tl.constexpr, L: tl.constexpr):
    """Return the rows (R, 1) and lanes (1, L) of a program, int64.

    Places that do not exist repeat the last one: a load with a mask takes another instruction.
    """
    rows = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)[:, None]
    lanes = tl.program_id(1).to(tl.int64) * L + tl.arange(0, L)[None, :]
    return tl.minimum(rows, num_rows - 1), tl.minimum(lanes, H - 1)


@triton.jit
def span_of(
    rows, sequences, bounds, firsts, rows_of_sequence, T,
    L: tl.constexpr, PACKED: tl.constexpr, MAPS: tl.constexpr,
):  # fmt: skip
    """Return where the chunk, or with MAPS the map, of each row lies, and which rows have one.

    If PACKED, ``sequences`` says which sequence each row has, or -1, ``bounds`` where each begins,
    and ``firsts`` how many maps are before it. Returns the mask, the row of the batch, the
    sequence, the chunk in it, the first step of the sequence, and the step after its last, or -1.
    """
    mask = tl.full((rows.shape[0], L), 1, tl.int1)
    if PACKED:
        sequence = tl.load(sequences + rows)
        exists = sequence >= 0
        sequence = tl.maximum(sequence, 0)
        mask = mask & exists
        c = rows - tl.load(firsts + sequence)
        if not MAPS:
            c -= sequence
        c = tl.where(exists, c, 0)
        origin = tl.load(bounds + sequence)
        stop = tl.where(exists, tl.load(bounds + sequence + 1), -1)
        b = tl.zeros_like(rows)
    else:
        sequence = rows // rows_of_sequence
        c = rows % rows_of_sequence
        origin = tl.zeros_like(rows)
        stop = origin + T
        b = sequence
    return mask, b, sequence, c, origin, stop


@triton.jit
def load_all(pointers, stride, mask, S: tl.constexpr, COUNT: tl.constexpr):
    """Return COUNT tiles, a stride apart, in dtype S."""
    tiles = ()
    for i in tl.static_range(COUNT):
        tiles = tiles + (tl.load(pointers + i * stride, mask=mask, other=0.0).to(S),)
    return tiles


@triton.jit
def load_part(pointers, mask, S: tl.constexpr, BEGIN: tl.constexpr, COUNT: tl.constexpr):
    """Return COUNT tiles in dtype S, from pointer number BEGIN on."""
    tiles = ()
    for i in tl.static_range(COUNT):
        tiles = tiles + (tl.load(pointers[BEGIN + i], mask=mask).to(S),)
    return tiles


@triton.jit
def load_steps(pointers, masks, S: tl.constexpr, STEPS: tl.constexpr, COUNT: tl.constexpr):
    """Return COUNT tiles of each of several steps, in dtype S; each step has a mask."""
    tiles = ()
    for step in tl.static_range(STEPS):
        tiles = tiles + load_part(pointers, masks[step], S, step * COUNT, COUNT)
    return tiles


@triton.jit
def steps_ahead(t, end, mask, STEPS: tl.constexpr, RAGGED: tl.constexpr):
    """Return the masks of the steps from t on; if ragged, those from ``end`` on do not exist."""
    masks = ()
    for step in tl.static_range(STEPS):
        masks = masks + (mask & (t + step < end) if RAGGED else mask,)
    return masks


@triton.jit
def steps_back(t, begun, mask, STEPS: tl.constexpr, RAGGED: tl.constexpr):
    """Return the masks of the steps back from t; if ragged, those before ``begun`` do not exist."""
    masks = ()
    for step in tl.static_range(STEPS):
        masks = masks + (mask & (t - step >= begun) if RAGGED else mask,)
    return masks


@triton.jit
def part(tiles, BEGIN: tl.constexpr, COUNT: tl.constexpr):
    """Return COUNT tiles, from number BEGIN on."""
    result = ()
    for i in tl.static_range(COUNT):
        result = result + (tiles[BEGIN + i],)
    return result


@triton.jit
def places(
    first, by_step, by_row, by_entry,
    STEPS: tl.constexpr, ROWS: tl.constexpr, COUNT: tl.constexpr,
):  # fmt: skip
    """Return pointers to COUNT entries of ROWS rows of STEPS steps.

    A loop that carries all of them is compiled in less than a third of the time: pointers computed
    in it lead TritonGPUCoalesce through the whole kernel, for each load. If the strides are known
    then, they share one register, and the loads take no instructions beside themselves.
    """
    result = ()
    for step in tl.static_range(STEPS):
        for row in tl.static_range(ROWS):
            for i in tl.static_range(COUNT):
                result = result + (first + step * by_step + row * by_row + i * by_entry,)
    return result


@triton.jit
def advanced(pointers, by, COUNT: tl.constexpr):
    """Return COUNT pointers, moved."""
    result = ()
    for i in tl.static_range(COUNT):
        result = result + (pointers[i] + by,)
    return result


@triton.jit
def store_all(pointers, stride, tiles, mask, COUNT: tl.constexpr):
    """Store COUNT tiles a stride apart."""
    for i in tl.static_range(COUNT):
        tl.store(pointers + i * stride, tiles[i].to(pointers.dtype.element_ty), mask=mask)


@triton.jit
def chosen(condition, tiles, others, COUNT: tl.constexpr):
    """Return ``tiles`` where a condition holds, and ``others`` elsewhere."""
    result = ()
    for i in tl.static_range(COUNT):
        result = result + (tl.where(condition, tiles[i], others[i]),)
    return result


@triton.jit
def added(tiles, others, COUNT: tl.constexpr):
    """Return the sums of the first COUNT tiles of two tuples."""
    result = ()
    for i in tl.static_range(COUNT):
        result = result + (tiles[i] + others[i],)
    return result


@triton.jit
def scaled(tiles, factor, COUNT: tl.constexpr):
    """Return COUNT tiles times a factor."""
    result = ()
    for i in tl.static_range(COUNT):
        result = result + (tiles[i] * factor,)
    return result


@triton.jit
def zeros(zero, COUNT: tl.constexpr):
    """Return COUNT tiles of zeros."""
    result = ()
    for _ in tl.static_range(COUNT):
        result = result + (zero,)
    return result


@triton.jit
def in_front(first, tiles, COUNT: tl.constexpr):
    """Return COUNT tiles, with one more in front and without the last."""
    return (first,) + part(tiles, 0, COUNT - 1)


@triton.jit
def unit_columns(first, zero, M: tl.constexpr, COLUMNS: tl.constexpr):
    """Return columns of the identity from ``first`` on, then zeros: all first entries first."""
    columns = ()
    for i in tl.static_range(M):
        for k in tl.static_range(COLUMNS):
            columns = columns + (zero + (first + k == i).to(zero.dtype),)
    return columns


@triton.jit
def with_input(x, p, v, first, k: tl.constexpr, M: tl.constexpr, COLUMNS: tl.constexpr):
    """Return x, plus p v if ``first`` + k is column M, the one with inputs."""
    if COLUMNS == M + 1:
        if k == M:
            x += p * v
    else:
        x += p * v * (first + k == M).to(x.dtype)
    return x


@triton.jit
def store_columns(
    maps, rows, lanes, first, columns, mask, H, M: tl.constexpr, COLUMNS: tl.constexpr
):
    """Store columns of the maps of rows, in two halves: see :func:`places`."""
    HALF: tl.constexpr = (COLUMNS + 1) // 2
    end = tl.minimum(first + COLUMNS, M + 1)
    left = ()
    for k in tl.static_range(2 * HALF):
        for i in tl.static_range(M):
            left = left + (columns[i * COLUMNS + (k if k < COLUMNS else 0)],)
    at = places(maps + (rows * (M + 1) + first) * M * H + lanes, M * H, 0, H, HALF, 1, M)
    for half in tl.range(0, 2):
        for k in tl.static_range(HALF):
            kept = mask & (first + (half * HALF + k) < end)
            for i in tl.static_range(M):
                tl.store(at[k * M + i], left[k * M + i], mask=kept)
        left = pushed(left, left, 2 * HALF * M, HALF * M)
        at = advanced(at, HALF * M * H, HALF * M)


@triton.jit
def pushed(tiles, last, COUNT: tl.constexpr, BY: tl.constexpr):
    """Return COUNT tiles without the first BY of them, and with BY others at the end.

    A loop that does so replaces all in order, and needs no index known to the compiler.
    """
    return part(tiles, BY, COUNT - BY) + part(last, 0, BY)
