"""Compile the Triton kernels ahead of time, and read from the machine code what they cost.

No GPU is needed. Times are a model (predicted.py).
"""

import hashlib
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from statemix.bench.machine_code import bytes_of, disassembled, loads_of, loops_of
from statemix.bench.predicted import (
    BYTES,
    CARRIES,
    KERNELS,
    Code,
    gates_of,
    moved_s,
    problem_of,
    times_of,
)
from statemix.errors import RequestError, SettingError
from statemix.ops import triton
from statemix.ops.dispatch import GIVEN
from statemix.ops.gates import GATES
from statemix.ops.triton import TRITON
from statemix.ops.triton.plan import (
    Shape,
    Tile,
    ahead_of,
    alignment,
    family_of,
    kernels_of,
    options_of,
    shape_of,
    shift_of,
    tile_of,
)

OPERATORS = tuple(TRITON.kernels)
# Target -> backend, architecture and threads of a warp, as Triton calls them.
TARGETS: dict[str, tuple[str, int | str, int]] = {
    "sm_80": ("cuda", 80, 32),
    "sm_90": ("cuda", 90, 32),
    "sm_100": ("cuda", 100, 32),
    "gfx942": ("hip", "gfx942", 64),
}
_POINTERS = {"bfloat16": "*bf16", "float16": "*fp16", "float32": "*fp32", "float64": "*fp64"}
DTYPES = tuple(_POINTERS)
# Arguments by what they are; the others are integers.
_ELEMENTS = ("gates", "values", "states", "d_states", "d_gates", "d_values")
_STATES = (
    "entering", "final", "initial", "maps", "offsets", "leaving", "d_final", "d_initial",
    "temperature", "outer",
)  # fmt: skip
_PLACES = ("sequences", "bounds", "firsts")
# Sequences, and their steps, of a problem that is large enough for every tile.
_ROWS, _STEPS = 1024, 1024


def sources() -> str:
    """Return a digest of the sources of the kernels and of what cuts problems for them."""
    folder = Path(triton.__file__).parent
    files = [folder / "plan.py", *sorted((folder / "kernels").glob("*.py"))]
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()[:16]


def families_of(operator: str) -> tuple[str, ...]:
    """Return the gate families that the kernels of an operator have."""
    fitting = (
        name for name in TRITON.families if operator == "block" or not GATES[name].blocks_only
    )
    return (*fitting, GIVEN)


@dataclass(frozen=True)
class Variant:
    """One kernel as it may be chosen.

    Attributes:
        operator: "block" or "lag".
        kernel: name of the kernel; "carries_back" is "carries" in reverse.
        size: m.
        dtype: name of the dtype of gates.
        gate: gate family, one that the operator has.
        target: a name in :data:`TARGETS`.
        packed: whether sequences are packed; chunks of these are ragged, too.
        ragged: whether a chunk ends before the steps that are read at once; the rule of plan.py
            avoids that where it can.
        tempered: whether there is a temperature: layers have one, even if it is 1.
        width: units H. Loads are as wide as its powers of two allow.
        full: whether sequences fill the device, so that a thread holds as many lanes as it can;
            for local scans.
    """

    operator: str
    kernel: str
    size: int
    dtype: str = "bfloat16"
    gate: str = "softmax"
    target: str = "sm_90"
    packed: bool = False
    ragged: bool = False
    tempered: bool = True
    width: int = 192
    full: bool = False

    def __post_init__(self) -> None:
        for name, known in (
            ("operator", OPERATORS),
            ("kernel", KERNELS),
            ("dtype", DTYPES),
            ("gate", families_of(self.operator)),
            ("target", tuple(TARGETS)),
        ):
            if getattr(self, name) not in known:
                raise SettingError(name, f"must be one of {list(known)}", getattr(self, name))
        for name in ("size", "width"):
            if getattr(self, name) < 1:
                raise SettingError(name, "must be at least 1", getattr(self, name))

    @property
    def gates(self) -> int:
        """Gates of a step of a lane; for carries, entries of the map of a chunk."""
        return gates_of(self.operator, self.kernel, self.size)

    @property
    def entries(self) -> int:
        """Entries of the state that a step of a lane writes."""
        return self.size if self.operator == "block" else 1

    @property
    def shape(self) -> Shape:
        """How much one thread holds."""
        if self.kernel in CARRIES:
            return Shape(1)
        return shape_of(
            kernels_of(self.operator, self.gate),
            self.kernel,
            self.size,
            BYTES[self.dtype],
            align=alignment(*self.strides.values()),
            full=self.full,
        )

    @property
    def strides(self) -> dict[str, int]:
        """H and the strides of dense tensors, in memory (B, T, m, m+1, H), by their arguments."""
        row = (self.size + 1) * self.width
        strides = {"H": self.width, "gates_i": row, "gates_j": self.width}
        for name, numbers in (
            ("gates", self.gates), ("values", self.entries), ("d_states", self.entries)
        ):  # fmt: skip
            step = numbers * self.width
            strides |= {f"{name}_b": _STEPS * step, f"{name}_t": step}
            strides.setdefault(f"{name}_i", self.width)
        return strides

    @property
    def state_bytes(self) -> int:
        """Bytes of a number of a carried state."""
        return max(4, BYTES[self.dtype])


class Compiled(NamedTuple):
    """What the machine code of a variant says.

    Attributes:
        lanes: lanes of a program, which is one warp.
        steps: steps that a thread reads at once.
        rows: rows of a step of blocks that it reads at once.
        columns: columns of maps of a thread; 0 if it has none.
        registers: registers of a thread.
        spilled: bytes of registers that a thread keeps in memory.
        shared: bytes of shared memory of a program.
        load: bytes that a thread loads of the gates at once; None if the target is not NVIDIA's.
        store: bytes that a thread stores at once; None likewise.
        loads: loads of global memory that a thread reads at once by its plan; None likewise.
        in_flight: how many of them the compiler lets wait at once, as it may put a load off until
            registers are free; None likewise.
        instructions: instructions of a step, per gate and lane, over all columns of maps; None
            likewise.
        functions: powers, roots, reciprocals and tanh among them; None likewise.
        issue: time to issue the instructions over the time to move the bytes, on an H200; None
            likewise.
        special: time to compute the functions over the time to move the bytes; None likewise.
        wait: time to wait for what is read over the time to move the bytes; None likewise.
        roofline_us: time to move the bytes of a pass over the problem of predicted.py, on an H200.
        predicted_us: the longest of that and of the times to issue, to compute functions and to
            wait; None if the target is not NVIDIA's.
        seconds: time to compile.
    """

    lanes: int
    steps: int
    rows: int
    columns: int
    registers: int
    spilled: int
    shared: int
    load: int | None
    store: int | None
    loads: int | None
    in_flight: int | None
    instructions: float | None
    functions: float | None
    issue: float | None
    special: float | None
    wait: float | None
    roofline_us: float
    predicted_us: float | None
    seconds: float


def check_compiler() -> None:
    """Check that kernels can be compiled here.

    Raises:
        RequestError: if Triton is not installed, or interprets.
    """
    from importlib.util import find_spec

    if find_spec("triton") is None:
        raise RequestError("kernels must have Triton to be compiled: pip install 'statemix[gpu]'")
    from triton import knobs

    if knobs.runtime.interpret:
        raise RequestError("TRITON_INTERPRET must be unset to compile kernels, got 1")


def compiled(variant: Variant) -> Compiled:
    """Compile a variant and read its machine code."""
    from triton import compile as build
    from triton import knobs
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from statemix.ops.triton.kernels import carries
    from statemix.ops.triton.kernels.tiles import SIZES
    from statemix.ops.triton.problems import KERNELS as MODULES

    shape, strides = variant.shape, variant.strides
    module = MODULES[kernels_of(variant.operator, variant.gate)]
    tile = tile_of(_ROWS, variant.width, shape.lanes)
    constants: dict[str, Any] = {}
    if variant.kernel in CARRIES:
        module, ahead = carries, ahead_of(variant.size, variant.state_bytes)
        tile, constants = Tile(1, ahead.lanes), ahead.options
    function = getattr(module, variant.kernel.removesuffix("_back"))
    constants |= {
        "M": variant.size,
        "STEPS": shape.steps,
        "ROWS": shape.rows,
        "COLUMNS": shape.columns,
        "FAMILY": family_of(variant.gate, bfloat16=variant.dtype == "bfloat16"),
        "SHIFT": shift_of(variant.size),
        "R": tile.rows,
        "L": tile.lanes,
        "RAGGED": variant.ragged or variant.packed,
        "PACKED": variant.packed,
        "TEMPERED": variant.tempered,
        "ALIGN": alignment(*strides.values()),
        "REVERSE": variant.kernel == "carries_back",
    }
    constants |= {name: size for name, size in strides.items() if not name.endswith("_b")}
    names = function.arg_names
    kinds = {name: _kind(name, variant, constants) for name in names}
    source = ASTSource(
        function,
        kinds,
        constexprs={name: constants[name] for name in names if name in constants},
        attrs={
            (place,): [["tt.divisibility", 16]]
            for place, name in enumerate(names)
            if name not in constants and name not in SIZES and strides.get(name, 0) % 16 == 0
        },
    )
    begun = time.monotonic()
    with knobs.compilation.scope():
        # Not from the cache, so that the time is that of a first call.
        knobs.compilation.always_compile = True
        target = GPUTarget(*TARGETS[variant.target])
        element_bytes, nvidia = BYTES[variant.dtype], target.backend == "cuda"
        options = options_of(variant.kernel, variant.size, element_bytes, nvidia=nvidia)
        with _compiling_for(target):
            kernel = build(source, target=target, options=options)
    seconds = time.monotonic() - begun
    cut = (tile.rows * tile.lanes, shape.steps, shape.rows, shape.columns)
    problem = problem_of(variant.operator, variant.size, full=variant.full)
    bytes_s = moved_s(variant.operator, variant.kernel, variant.size, BYTES[variant.dtype], problem)
    if "cubin" not in kernel.asm:
        text = kernel.asm["amdgcn"]
        registers, spilled = (
            int(re.search(rf"\.{name}:\s+(\d+)", text).group(1))  # type: ignore[union-attr]
            for name in ("vgpr_count", "vgpr_spill_count")
        )
        shared = kernel.metadata.shared
        return Compiled(
            *cut, registers, 4 * spilled, shared, *(None,) * 9,
            _microseconds(bytes_s), None, round(seconds, 2),
        )  # fmt: skip
    usage, code = disassembled(kernel.asm["cubin"])
    groups = -(-(variant.size + 1) // shape.columns) if shape.columns else 1
    instructions, functions = (
        32 * groups * _step(code, variant, name) / (variant.gates * cut[0]) for name in ("", "MUFU")
    )
    reads = loads_of(code)
    times = times_of(
        Code(
            variant.operator,
            variant.kernel,
            variant.size,
            BYTES[variant.dtype],
            *cut,
            usage["REG"],
            *reads,
            instructions,
            functions,
        ),
        problem,
    )
    return Compiled(
        *cut,
        usage["REG"],
        usage["STACK"],
        kernel.metadata.shared,
        bytes_of("LDG(?:STS)?", code),
        bytes_of("STG", code),
        *reads,
        round(instructions, 2),
        round(functions, 2),
        round(times.issued / times.moved, 3),
        round(times.special / times.moved, 3),
        round(times.waited / times.moved, 3),
        _microseconds(times.moved),
        _microseconds(max(times)),
        round(seconds, 2),
    )


@contextmanager
def _compiling_for(target: Any) -> Iterator[None]:
    """Let the driver name a target, as kernels ask it what they are compiled for (rows.py)."""
    from triton.runtime import driver

    # Without a GPU there is no driver, which `active` and `reset_active` would look for.
    before = driver._active
    driver.set_active(SimpleNamespace(get_current_target=lambda: target))
    try:
        yield
    finally:
        driver._active = before


def _microseconds(seconds: float) -> float:
    return round(1e6 * seconds, 2)


def _step(code: Sequence[str], variant: Variant, name: str) -> float:
    """Return the instructions of a step of time, or those of a name; for carries, of a chunk.

    The outer loop is one or some steps. If it has an inner one, a round of that is some rows of a
    block.
    """
    outer, inner = loops_of(code, name)
    blocks = variant.operator == "block" and variant.kernel not in CARRIES
    rounds = -(-variant.size // variant.shape.rows) if blocks else 1
    return (outer + (rounds - 1) * inner) / variant.shape.steps


def _kind(name: str, variant: Variant, constants: dict[str, Any]) -> str:
    if name in constants:
        return "constexpr"
    if name in _ELEMENTS:
        return _POINTERS[variant.dtype]
    if name in _STATES:
        return "*fp64" if variant.state_bytes == 8 else "*fp32"
    return "*i64" if name in _PLACES else "i32"
