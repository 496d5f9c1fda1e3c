"""Faults that the tests must notice: each a piece of text, and what stands there instead."""

from dataclasses import dataclass
from pathlib import Path

CPU = "src/statemix/ops/cpu/"
OPS = "src/statemix/ops/"
TRITON = "src/statemix/ops/triton/"
TRAINING = "src/statemix/training/"


@dataclass(frozen=True)
class Fault:
    """One way to break the code.

    Attributes:
        name: what it does, in words.
        file: where, from the root of the repository.
        old: text that stands there exactly once.
        new: what replaces it.
        tests: files of tests of which one must fail.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    @property
    def interpreted(self) -> bool:
        """Whether the tests run in Triton's interpreter."""
        return self.file.startswith(TRITON)


KERNEL_TESTS = (
    "tests/ops/cpu/test_kernels.py",
    "tests/ops/test_packing.py",
    "tests/ops/test_gates.py",
    "tests/ops/test_extremes.py",
    "tests/ops/test_temperature.py",
    "tests/ops/test_dispatch.py",
)


def _ops(*names: str) -> tuple[str, ...]:
    """Test files of modules of ``ops``; "lag/loop" is that of the module of this path."""
    paths = (Path("tests/ops", name) for name in names)
    return tuple(str(path.with_name(f"test_{path.name}.py")) for path in paths)


_AUTOENCODER = ("tests/models/test_autoencoder.py",)


def _training(*names: str) -> tuple[str, ...]:
    return tuple(f"tests/training/test_{name}.py" for name in names)


KERNELS = [
    Fault(
        "kernel: gradient of the final state dropped (blocks)",
        CPU + "block_scan.h",
        "load_state<Partial>(d_final, carry, work, size);",
        "for (int64_t n = 0; n < work.tiles * size; ++n) carry[n] = V{};",
        KERNEL_TESTS,
    ),
    Fault(
        "kernel: gradient of the final state dropped (reflections)",
        CPU + "reflect_scan.h",
        "load_state<Partial>(d_final, carry, work, size);",
        "for (int64_t n = 0; n < work.tiles * size; ++n) carry[n] = V{};",
        KERNEL_TESTS,
    ),
    Fault(
        "kernel: a reflection does not bend with the length of its vector",
        CPU + "reflect_scan.h",
        "before[i] * of_state + bent * along[i]",
        "before[i] * of_state",
        KERNEL_TESTS,
    ),
    Fault(
        "kernel: the input gate of a block is a gate of its first row",
        CPU + "reflect_scan.h",
        "mean += load<Partial>(gates + i * row, lanes) * share",
        "mean += load<Partial>(gates, lanes) * share",
        KERNEL_TESTS,
    ),
    Fault(
        "kernel: gradient of the final state dropped (lags)",
        CPU + "lag_scan.h",
        "load_state<Partial>(d_final, carry, work, size);",
        "for (int64_t n = 0; n < work.tiles * size; ++n) carry[n] = V{};",
        KERNEL_TESTS,
    ),
    Fault(
        "kernel: a packed sequence reads the state before its start",
        CPU + "block_scan.h",
        "t > work.start ? states",
        "t > 0 ? states",
        KERNEL_TESTS,
    ),
    Fault(
        "kernel: a packed sequence starts one step late",
        CPU + "work.h",
        "problem.cu_seqlens[work.sequence] : 0;",
        "problem.cu_seqlens[work.sequence] + 1 : 0;",
        KERNEL_TESTS,
    ),
    Fault(
        "kernel: the adjoint applies the block instead of its transpose",
        CPU + "block_scan.h",
        "{ sums[j] += x; }",
        "{ sums[i] += x + 0 * sums[j]; }",
        KERNEL_TESTS,
    ),
    Fault(
        "kernel: gradient of the state gates zeroed",
        CPU + "rows.h",
        "differentiate(j, u(j))",
        "differentiate(j, h)",
        KERNEL_TESTS,
    ),
    Fault(
        "kernel: gradient of the input gate misses the normaliser",
        CPU + "rows.h",
        "x * unit - G::signed_state(f, mean)",
        "x * unit - (j == size ? V{} : G::signed_state(f, mean))",
        KERNEL_TESTS,
    ),
    Fault(
        "kernel: what a lag adds to the adjoint does not move a step",
        CPU + "lag_scan.h",
        "j + 1 < size ? pending[j + 1] + x : x",
        "j + 1 < size ? pending[j] + x : x",
        KERNEL_TESTS,
    ),
    Fault(
        "kernel: lags read from the wrong slot of the ring",
        CPU + "lag_scan.h",
        "const V* newest = ring + slot - 1;",
        "const V* newest = ring + slot;",
        KERNEL_TESTS,
    ),
    Fault(
        "kernel: lags of the initial state reversed in its gradient",
        CPU + "lag_scan.h",
        "store_state<Partial>(d_initial, carry, work, size);",
        "for (int64_t k = 0; k < work.tiles; ++k)\n"
        "    std::reverse(carry + k * size, carry + (k + 1) * size);\n"
        "  store_state<Partial>(d_initial, carry, work, size);",
        KERNEL_TESTS,
    ),
    Fault(
        "kernel: sign dropped from the normaliser's gradient (tanh)",
        CPU + "gates.h",
        "    return (1 - f * f) * scale.slope;\n  }\n"
        "  template <class V> static V signed_state(V f, V h) "
        "{ return f > 0 ? h : (f < 0 ? -h : h * 0); }",
        "    return (1 - f * f) * scale.slope;\n  }\n"
        "  template <class V> static V signed_state(V f, V h) { return h; }",
        KERNEL_TESTS,
    ),
    Fault(
        "kernel: maximum not subtracted (softmax)",
        CPU + "gates.h",
        "0.5 - scale.half_top) * scale.factor",
        "0.5) * scale.factor",
        KERNEL_TESTS,
    ),
    Fault(
        "kernel: slope of the sigmoid missing",
        CPU + "gates.h",
        "*slope = smaller(V{} + std::numeric_limits<S>::max(), e) * f * f",
        "*slope = f",
        KERNEL_TESTS,
    ),
    Fault(
        "kernel: a sigmoid whose power overflows has no slope",
        CPU + "gates.h",
        "smaller(V{} + std::numeric_limits<S>::max(), e)",
        "e",
        KERNEL_TESTS,
    ),
    Fault(
        "kernel: tanh inaccurate near zero",
        CPU + "vectors.h",
        "return size < 0.1 ? x + x * z * p : (x < 0 ? -large : large);",
        "return x < 0 ? -large : large;",
        KERNEL_TESTS,
    ),
    Fault(
        "kernel: tanh of large gates is not 1",
        CPU + "vectors.h",
        "smaller(VectorF{} + 1.0f, size * p / q)",
        "size * p / q",
        KERNEL_TESTS,
    ),
    Fault(
        "kernel: epsilon missing from the normaliser",
        CPU + "gates.h",
        "constexpr double kEpsilon = 1e-6;",
        "constexpr double kEpsilon = 0;",
        KERNEL_TESTS,
    ),
    Fault(
        "kernel: blocks beyond the last full register left out",
        CPU + "work.h",
        "(problem.blocks + width - 1) / width",
        "problem.blocks / width",
        KERNEL_TESTS,
    ),
    Fault(
        "kernel: last lane of a part of a register not stored",
        CPU + "vectors.h",
        "memcpy(to, &x, lanes * sizeof(Element));",
        "memcpy(to, &x, (lanes - 1) * sizeof(Element));",
        KERNEL_TESTS,
    ),
    Fault(
        "kernel: last lane of a part of a wide register not stored",
        CPU + "vectors.h",
        "_mm512_mask_storeu_ps(to, first(lanes), (__m512)x);",
        "_mm512_mask_storeu_ps(to, first(lanes - 1), (__m512)x);",
        KERNEL_TESTS,
    ),
    Fault(
        "kernel: both halves of a streamed line are the second",
        CPU + "vectors.h",
        "    *half = narrow(x);\n",
        "    *half = (HalfU){};\n",
        KERNEL_TESTS,
    ),
    Fault(
        "kernel: tiles whose outputs share a line are divided among threads",
        CPU + "work.h",
        "const int64_t together = streamed ? tiles_per_vector : 1;",
        "const int64_t together = 1;",
        KERNEL_TESTS,
    ),
    Fault(
        "kernel: states for the backward pass are those rounded to 16 bits",
        CPU + "lag_scan.h",
        "write<Partial>(wide_states + lane, mixed, work",
        "write<Partial>(wide_states + lane, (V)((VectorU)mixed & 0xffff0000u), work",
        KERNEL_TESTS,
    ),
    Fault(
        "kernel: gradients of large problems stored in the wrong place",
        CPU + "rows.h",
        "write<Partial>(d_gates + j * d_stride,",
        "write<Partial>(d_gates + (streamed ? 0 : j * d_stride),",
        KERNEL_TESTS,
    ),
    Fault(
        "kernel: temperature dropped from the gradient (softmax)",
        CPU + "rows.h",
        "gradient = common * f * difference * (rows.inverse / unit);",
        "gradient = common * f * difference / unit;",
        KERNEL_TESTS,
    ),
    Fault(
        "kernel: temperature dropped from rows with a top",
        CPU + "gates.h",
        "finite(problem.inverse_temperature * 2.88539008177792681472)",
        "finite(2.88539008177792681472)",
        KERNEL_TESTS,
    ),
    Fault(
        "kernel: epsilon not in the units of the row",
        CPU + "rows.h",
        "scale.factor / rows.inverse * (S)Gate<Family>::epsilon",
        "V{} + (S)Gate<Family>::epsilon",
        KERNEL_TESTS,
    ),
    Fault(
        "kernel: large rows of relu and signed gates overflow",
        CPU + "gates.h",
        "factor = factor < rows.inverse ? factor : V{} + rows.inverse;",
        "factor = V{} + rows.inverse;",
        KERNEL_TESTS,
    ),
    Fault(
        "kernel: the weighted sum of large values overflows (softmax)",
        CPU + "rows.h",
        "if (G::has_unit) scale.unit = rows.unit;",
        "",
        KERNEL_TESTS,
    ),
    Fault(
        "kernel: the weighted sum of large values by large gates overflows (relu, signed)",
        CPU + "gates.h",
        "part = unit / 4;",
        "part = unit;",
        KERNEL_TESTS,
    ),
    Fault(
        "kernel: what underflows is the smallest normal number",
        CPU + "vectors.h",
        "y = larger(VectorD{} - 1023, y);",
        "y = larger(VectorD{} - 1022, y);",
        KERNEL_TESTS,
    ),
    Fault(
        "kernel: gradients of large gates lose digits (relu, signed)",
        CPU + "rows.h",
        "slope < 1 ? common * (slope * difference) : common * slope * difference",
        "common * slope * difference",
        KERNEL_TESTS,
    ),
    Fault(
        "kernel: gradients of steep gates between large values overflow",
        CPU + "rows.h",
        "slope < 1 ? common * (slope * difference) : common * slope * difference",
        "common * (slope * difference)",
        KERNEL_TESTS,
    ),
    Fault(
        "kernel: a failed allocation passes for a result",
        CPU + "work.h",
        "      status = OUT_OF_MEMORY;",
        "      status = DONE;",
        KERNEL_TESTS,
    ),
    Fault(
        "kernel: a small problem wakes every thread",
        CPU + "work.h",
        "count_gates(problem) < kGatesPerTeam ? 1",
        "count_gates(problem) < 0 ? 1",
        KERNEL_TESTS,
    ),
    Fault(
        "kernel: state carried in 16 bits",
        CPU + "block_scan.h",
        "      return mixed;\n",
        "      return sizeof(Element) == 2 ? (V)((VectorU)mixed & 0xffff0000u) : mixed;\n",
        KERNEL_TESTS,
    ),
]

PYTHON_OPS = [
    Fault(
        "kernels: a forked child waits for the threads of its parent",
        CPU + "loader.py",
        "before=lambda: pause(_PAUSE_HARD)",
        "before=lambda: None",
        _ops("cpu/forks"),
    ),
    Fault(
        "gates: epsilon missing from the normaliser",
        OPS + "gates.py",
        "(scaled.abs().sum(-1, keepdim=True) + EPSILON / unit)",
        "scaled.abs().sum(-1, keepdim=True)",
        _ops("gates", "reference"),
    ),
    Fault(
        "gates: householder vectors lengthen the state",
        OPS + "gates.py",
        "(2 * lengths / (unit.reciprocal()",
        "(lengths / (unit.reciprocal()",
        _ops("gates", "reference"),
    ),
    Fault(
        "gates: long householder vectors overflow",
        OPS + "gates.py",
        "unit = vectors.detach().abs().amax(-1, keepdim=True).clamp(min=1)",
        "unit = torch.ones_like(vectors[..., :1])",
        _ops("extremes"),
    ),
    Fault(
        "gates: large sums overflow",
        OPS + "gates.py",
        "unit = numerators.detach().abs().amax(-1, keepdim=True).clamp(min=1)",
        "unit = torch.ones_like(numerators[..., :1])",
        _ops("extremes"),
    ),
    Fault(
        "temperature: gates are multiplied",
        OPS + "temperature.py",
        "else gates / temperature",
        "else gates * temperature",
        _ops("temperature"),
    ),
    Fault(
        "reference: the block transposed",
        OPS + "block/reference.py",
        "(A_t * h.unsqueeze(-2)).sum(-1)",
        "(A_t * h.unsqueeze(-1)).sum(-2)",
        _ops("reference", "dispatch"),
    ),
    Fault(
        "loop: gradient of the final state dropped",
        OPS + "block/loop.py",
        "carry = d_final_state.transpose(1, 2)",
        "carry = 0 * d_final_state.transpose(1, 2)",
        _ops("loop", "dispatch"),
    ),
    Fault(
        "loop: packed blocks are not reset in the forward",
        OPS + "block/loop.py",
        "h = torch.where(packing.first[t], starts[t], h)",
        "h = torch.where(packing.first[0] & (starts[t] == t), starts[t], h)",
        _ops("packing"),
    ),
    Fault(
        "loop: packed lags are not reset in the backward",
        OPS + "lag/loop.py",
        "pushed = torch.where(packing.last[t], ends[t], pushed)",
        "pushed = pushed + packing.last[t] * ends[t]",
        _ops("packing"),
    ),
    Fault(
        "loop: bounds are read back",
        OPS + "lag/loop.py",
        "    if not len(states):\n",
        "    if cu_seqlens.tolist() == [0]:\n",
        _ops("packing"),
    ),
    Fault(
        "associative: segments are multiplied by zero instead of chosen",
        OPS + "associative.py",
        '"x": torch.where(reset, curr["x"], x),',
        '"x": curr["x"] + (x - curr["x"]) * ~reset,',
        _ops("packing"),
    ),
    Fault(
        "associative: transitions not moved towards the past in the adjoint",
        OPS + "block/associative.py",
        "following.transpose(-1, -2), d_states",
        "transitions.transpose(-1, -2), d_states",
        _ops("associative", "dispatch"),
    ),
    Fault(
        "observer: gates delayed by one step too many",
        OPS + "lag/realizations.py",
        "(0, 0, delay, 0)",
        "(0, 0, delay + 1, 0)",
        _ops("lag/realizations"),
    ),
    Fault(
        "observer: initial partial sums forgotten",
        OPS + "lag/realizations.py",
        "owed = initial_state[..., 1:].transpose(1, 2)",
        "owed = 0 * initial_state[..., 1:].transpose(1, 2)",
        _ops("lag/realizations"),
    ),
    Fault(
        "initial state ignored",
        OPS + "dispatch.py",
        "return initial_state.to(dtype)",
        "return 0 * initial_state.to(dtype)",
        _ops("dispatch"),
    ),
    Fault(
        "packed sequences see the one before them",
        OPS + "packing.py",
        "torch.where(over(position == 0, x.ndim), started, shifted)",
        "torch.where(over(position < 0, x.ndim), started, shifted)",
        _ops("packing", "lag/realizations"),
    ),
    Fault(
        "vmap: packed rows share their bounds",
        OPS + "folding.py",
        "(cu_seqlens[:-1] + offsets)",
        "(cu_seqlens[:-1] + 0 * offsets)",
        _ops("registered"),
    ),
    Fault(
        "vmap: gradients are not divided by temperatures of their own",
        OPS + "registered.py",
        "(d_gates / divisor).to(dtype)",
        "(d_gates + 0 * divisor).to(dtype)",
        _ops("temperature"),
    ),
    Fault(
        "backends: an unavailable backend is chosen",
        OPS + "backends.py",
        "return self.refusal(operator, device_type, dtype) or reason_of(self.name)",
        "return self.refusal(operator, device_type, dtype)",
        _ops("backends"),
    ),
]

MODELS = [
    Fault(
        "layers: a signal raises while tensors have shapes alone",
        "src/statemix/layers/largest.py",
        "with Interrupts() as interrupts:",
        "for interrupts in [Interrupts()]:",
        ("tests/layers/test_largest.py",),
    ),
    Fault(
        "norms: the small term ignores how vectors were scaled",
        "src/statemix/layers/norms.py",
        "eps * (scale / unit).square()",
        "eps * unit.reciprocal().square()",
        ("tests/layers/test_norms.py",),
    ),
    Fault(
        "norms: squares of long vectors overflow",
        "src/statemix/layers/norms.py",
        "unit = (x.detach().abs().amax(-1, keepdim=True) * 2.0**-32).clamp(min=scale)",
        "unit = x.detach()[..., :1] * 0 + scale",
        ("tests/layers/test_norms.py",),
    ),
    Fault(
        "mamba2: gates do not count in the size of readouts",
        "src/statemix/layers/mamba2.py",
        "z.amax(-1, keepdim=True).clamp(min=1)",
        "1",
        ("tests/layers/test_extremes.py",),
    ),
    Fault(
        "decays: the rate overflows by itself",
        "src/statemix/layers/decays.py",
        "(A_log + log_steps)",
        "(A_log.clamp(max=80) + log_steps)",
        ("tests/layers/test_decays.py",),
    ),
    Fault(
        "settings: a field left at another type's default is taken for the default",
        "src/statemix/plain.py",
        "if type(value) is not type(usual) or value != usual:",
        "if value != usual and not isinstance(value, tuple):",
        ("tests/test_settings.py",),
    ),
    Fault(
        "settings: what was asked of a part is ignored",
        "src/statemix/plain.py",
        "        return asked(value)\n",
        "        return {}\n",
        ("tests/test_settings.py",),
    ),
    Fault(
        "settings: a field that one side does not hold makes no difference",
        "src/statemix/plain.py",
        "for name in [*shared, *single]:",
        "for name in shared:",
        ("tests/test_settings.py",),
    ),
    Fault(
        "settings: errors lose the name of the part",
        "src/statemix/plain.py",
        'raise error.below(f"{dot}{error.path}") from None',
        "raise error",
        ("tests/test_settings.py",),
    ),
    Fault(
        "registry: options that equal their defaults are asked for",
        "src/statemix/registry.py",
        "            if not _same(value, known[option][1])\n",
        "",
        (
            "tests/test_registry.py",
            "tests/test_settings.py",
        ),
    ),
    Fault(
        "registry: missing options are not noticed",
        "src/statemix/registry.py",
        "        if missing:\n",
        "        if missing and not options:\n",
        (
            "tests/layers/test_registry.py",
            "tests/test_registry.py",
        ),
    ),
    Fault(
        "layer: gate temperature ignored in sequences",
        "src/statemix/layers/bd_lru.py",
        "            cu_seqlens,\n            temperature=self.temperature,\n",
        "            cu_seqlens,\n",
        ("tests/layers",),
    ),
    Fault(
        "layer: the backend is not passed on (blocks)",
        "src/statemix/layers/bd_lru.py",
        "            cu_seqlens,\n"
        "            temperature=self.temperature,\n"
        "            backend=self.backend,\n",
        "            cu_seqlens,\n            temperature=self.temperature,\n",
        ("tests/layers/test_gated_recurrence.py",),
    ),
    Fault(
        "layer: the backend is not passed on (steps of lags)",
        "src/statemix/layers/h_lru.py",
        "            realization=self.realization,\n"
        "            backend=self.backend,\n"
        "        )\n\n"
        "    def _read_out",
        "            realization=self.realization,\n        )\n\n    def _read_out",
        ("tests/layers/test_gated_recurrence.py",),
    ),
    Fault(
        "layer: direct steps pass over the hooks of projections",
        "src/statemix/layers/linear.py",
        "        or module._forward_hooks\n",
        "",
        ("tests/layers/test_gated_recurrence.py",),
    ),
    Fault(
        "layout: a shortcut view swaps the rows and gates of a unit",
        "src/statemix/ops/layout.py",
        "(*flat.stride()[:-1], 1, *strides)",
        "(*flat.stride()[:-1], 1, *strides[::-1])",
        ("tests/layers/test_gated_recurrence.py",),
    ),
    Fault(
        "layout: joined units keep their rows together",
        "src/statemix/ops/layout.py",
        "units.mT.flatten(-2)",
        "units.flatten(-2)",
        ("tests/ops/test_layout.py",),
    ),
    Fault(
        "decoding: a prepared step serves states of any memory order",
        "src/statemix/ops/decoding.py",
        "*(state.shape, state.stride(), state.dtype, state.device),",
        "*(state.shape, state.dtype, state.device),",
        ("tests/ops/test_decoding.py", "tests/layers/test_gated_recurrence.py"),
    ),
    Fault(
        "decoding: a prepared step outlives a change of the backends",
        "src/statemix/ops/decoding.py",
        "backend, BACKENDS.revision, torch",
        "backend, torch",
        ("tests/ops/test_decoding.py",),
    ),
    Fault(
        "shortcuts: a pending sign is overlooked",
        "src/statemix/ops/shortcuts.py",
        "    keys = _keys(tensor)\n",
        "    keys = _keys(tensor if not tensor.is_neg() else tensor.resolve_neg())\n",
        ("tests/ops/test_decoding.py", "tests/ops/test_registered.py"),
    ),
    Fault(
        "shortcuts: the first tensor alone is asked whether it is plain",
        "src/statemix/ops/shortcuts.py",
        "    for tensor in tensors:\n",
        "    for tensor in tensors[:1]:\n",
        ("tests/ops/test_decoding.py", "tests/layers/test_gated_recurrence.py"),
    ),
    Fault(
        "shortcuts: a profiler sees no operator",
        "src/statemix/ops/shortcuts.py",
        "        and not torch._C._autograd._profiler_enabled()\n",
        "",
        ("tests/ops/test_registered.py",),
    ),
    Fault(
        "shortcuts: gradients are not asked whether they are plain",
        "src/statemix/ops/autograd.py",
        "            *(d_states, d_final_state, gates, values),\n            *(states",
        "            *(gates, values),\n            *(states",
        ("tests/ops/test_registered.py",),
    ),
    Fault(
        "shortcuts: forward mode is overlooked",
        "src/statemix/ops/autograd.py",
        "forward_ad._current_level >= 0 or (",
        "(",
        ("tests/ops/test_registered.py",),
    ),
    Fault(
        "shortcuts: inference keeps what only a backward pass reads",
        "src/statemix/ops/registered.py",
        "keeps=False",
        "keeps=True",
        KERNEL_TESTS,
    ),
    Fault(
        "decoding: a projected step mixes rows and columns",
        "src/statemix/ops/decoding.py",
        "gates.view(B, *rows, m + 1, H).movedim(-1, 1)",
        "gates.view(B, m + 1, *rows, H).transpose(1, 1 + len(rows)).movedim(-1, 1)",
        ("tests/layers/test_gated_recurrence.py",),
    ),
    Fault(
        "state: rows are taken from the first tensor alone",
        "src/statemix/layers/state.py",
        "return map_state(taken, state)",
        "first = next(tensor for _, tensor in tensors(state))\n"
        "    return map_state(lambda t: taken(t) if t is first else t, state)",
        (
            "tests/layers/test_state.py",
            "tests/layers/test_layer.py",
        ),
    ),
    Fault(
        "layer: the device of a state is not checked",
        "src/statemix/layers/layer.py",
        "if part.device != device:",
        "if part.device != part.device:",
        ("tests/layers/test_layer.py",),
    ),
    Fault(
        "model: the residual around the channel mixer is dropped",
        "src/statemix/models/block.py",
        "            y = self.mixer(self.mixer_norm(x))\n"
        "            x = x + y if self.residual else y",
        "            x = self.mixer(self.mixer_norm(x))",
        ("tests/models/test_synthetic.py",),
    ),
    Fault(
        "model: biases are zeroed past the layers",
        "src/statemix/models/synthetic.py",
        "                if isinstance(part, Block):\n                    part.zero_biases()",
        "                if isinstance(part, nn.Linear) and part.bias is not "
        "None:\n"
        "                    nn.init.zeros_(part.bias)",
        ("tests/models/test_synthetic.py",),
    ),
    Fault(
        "model: the learned token stands in front of the first packed sequence alone",
        "src/statemix/models/synthetic.py",
        "cu_seqlens + shifts",
        "cu_seqlens + shifts.clamp(max=1)",
        ("tests/models/test_synthetic.py",),
    ),
    *(
        Fault(f"autoencoder: {name}", f"src/statemix/models/{file}.py", old, new, _AUTOENCODER)
        for name, file, old, new in (
            (
                "positions dropped",
                "autoencoder",
                "vectors + position_vectors(positions, like=vectors)",
                "vectors.expand(*vectors.shape[:-2], len(positions), -1)",
            ),
            (
                "its second norm dropped",
                "autoencoder",
                "            nn.GELU(),\n            norm(hidden_size),",
                "            nn.GELU(),\n            nn.Identity(),",
            ),
            ("its last GELU dropped", "autoencoder", "nn.GELU(),\n        )", ")"),
            ("frequencies of another series", "autoencoder", "max(half - 1, 1)", "half"),
            ("the final norm dropped", "synthetic", "x = self.final_norm(x)\n", "x = +x\n"),
            (
                "linear maps keep the draws of their parts",
                "synthetic",
                'if linear_init == "normal":',
                'if linear_init == "uniform":',
            ),
            (
                "gates keep the biases of their parts",
                "synthetic",
                "            if part.bias is not None:\n                nn.init.zeros_(part.bias)",
                "            if part.bias is not None:\n                +part.bias",
            ),
            (
                "it reads the end of the padding",
                "autoencoder",
                "    if places is None:",
                "    if places is not otherwise:",
            ),
            (
                "a sequence that ended in an earlier piece is forgotten",
                "autoencoder",
                "torch.where(inside[:, None, None], found, otherwise)",
                "found",
            ),
            (
                "packed sequences read the last one's end",
                "synthetic",
                "last = place[cu_seqlens[sequence + 1] - 1]",
                "last = place[cu_seqlens[-1:] - 1]",
            ),
            (
                "positions count on over packed sequences",
                "synthetic",
                "index - cu_seqlens[sequence]",
                "index",
            ),
        )
    ),
    Fault(
        "fuzzy recall: the last pair may be one that is not shown",
        "src/statemix/tasks/mad/fuzzy_recall.py",
        "addressing.below(raw[:, -1], shown.sum(1))",
        "addressing.below(raw[:, -1], most)",
        ("tests/tasks/mad",),
    ),
    Fault(
        "fuzzy recall: a key repeats a value that is not its first",
        "src/statemix/tasks/mad/fuzzy_recall.py",
        "_taken(values, first)",
        "values",
        ("tests/tasks/mad",),
    ),
    Fault(
        "recall: a single query scores what comes before it",
        "src/statemix/tasks/mad/recall.py",
        "targets[:, :-1] = IGNORED",
        "targets[:, :-2] = IGNORED",
        ("tests/tasks/mad",),
    ),
    Fault(
        "task: products multiplied from the wrong side",
        "src/statemix/tasks/groups.py",
        "product = table[self.order * product + column]",
        "product = table[self.order * column + product]",
        ("tests/tasks",),
    ),
]

TRAINING_FAULTS = [
    Fault(
        "device: auto never finds a GPU",
        TRAINING + "config.py",
        'return "cuda" if torch.cuda.is_available() else "cpu"',
        'return "cpu"',
        _training("devices"),
    ),
    Fault(
        "run: any number of threads is accepted",
        TRAINING + "request.py",
        'check_threads("runtime.num_threads", config.runtime.num_threads)',
        "pass",
        _training("run"),
    ),
    Fault(
        "schedule: the learning rate never moves",
        TRAINING + "schedules.py",
        "progress = (step // steps_per_epoch) * steps_per_epoch / num_steps",
        "progress = 0.0",
        _training("schedules"),
    ),
    Fault(
        "schedule: attributes do not follow",
        TRAINING + "schedules.py",
        "                setattr(module, schedule.attribute, value)\n            except",
        "                pass\n            except",
        _training("schedules", "trainer"),
    ),
    Fault(
        "schedule: the curve is ignored",
        TRAINING + "schedules.py",
        'if config.curve == "geometric":',
        'if config.curve == "cubic":',
        _training("schedules"),
    ),
    Fault(
        "schedule: integers are not rounded",
        TRAINING + "schedules.py",
        "return value if isinstance(initial, float) else round(value)",
        "return value if isinstance(initial, float) else int(value)",
        _training("schedules", "trainer"),
    ),
    Fault(
        "evaluation: attributes are not restored",
        TRAINING + "schedules.py",
        "        for module, attribute, value in before:\n"
        "            setattr(module, attribute, value)",
        "        pass",
        _training("schedules", "run"),
    ),
    Fault(
        "trainer: the learning rate never reaches the optimiser",
        TRAINING + "optimizer.py",
        'group["lr"] = rate * group["rate_factor"]',
        'group["lr"] += 0 * rate',
        _training("trainer", "run"),
    ),
    Fault(
        "trainer: groups share one learning rate",
        TRAINING + "optimizer.py",
        'group["lr"] = rate * group["rate_factor"]',
        'group["lr"] = rate',
        _training("optimizer", "trainer"),
    ),
    Fault(
        "trainer: the attributes are never scheduled",
        TRAINING + "trainer.py",
        "        self.attributes(self.step)\n        model",
        "        model",
        _training("trainer", "run"),
    ),
    Fault(
        "trainer: gradients pile up over the steps",
        TRAINING + "trainer.py",
        "        optimizer.step()\n        optimizer.zero_grad()\n",
        "        optimizer.step()\n",
        _training("run", "resume"),
    ),
    Fault(
        "trainer: the gradient is not clipped",
        TRAINING + "trainer.py",
        "clip_grads_with_norm_(self._parameters, self.clip_norm, norm)",
        "pass",
        _training("trainer"),
    ),
    Fault(
        "trainer: reported numbers are dropped",
        TRAINING + "trainer.py",
        "for key, number in module.reports().items()",
        "for key, number in ()",
        _training("trainer", "run"),
    ),
    Fault(
        "trainer: numbers that later parts of a step report are dropped",
        TRAINING + "sums.py",
        "        for numbers in reports:\n",
        "        for numbers in reports[:1]:\n",
        _training("trainer"),
    ),
    Fault(
        "trainer: the averages are forgotten by a checkpoint",
        TRAINING + "sums.py",
        'for name, value in stored["sums"].items()',
        "for name, value in {}.items()",
        _training("trainer", "resume"),
    ),
    Fault(
        "trainer: a loss that is not finite is averaged",
        TRAINING + "trainer.py",
        "            reports.append(self.reports())\n",
        "            reports.append(self.reports())\n            self.sums.collect([losses], [])\n",
        _training("trainer"),
    ),
    Fault(
        "objective: each part of a step is averaged alone",
        TRAINING + "objective.py",
        "plain[head] = each.sum() / batch.num_scored[head]",
        "plain[head] = each.sum() / max(int((classes >= 0).sum()), 1)",
        _training("trainer"),
    ),
    Fault(
        "objective: the penalty acts on the plateau, too",
        TRAINING + "running.py",
        "self.losses.penalised = not self.search.on_plateau",
        "self.losses.penalised = True",
        _training("objective"),
    ),
    Fault(
        "objective: packed words weigh as one",
        TRAINING + "objective.py",
        "places = places - batch.cu_seqlens[sequence]",
        "pass",
        _training("objective"),
    ),
    Fault(
        "trainer: noise goes on where the last step left it",
        TRAINING + "trainer.py",
        "torch.default_generator.manual_seed(seed)",
        "pass",
        _training("objective"),
    ),
    Fault(
        "gates: noise in evaluation",
        "src/statemix/layers/gated_recurrence.py",
        "if not (self.training and self._gate_noise):",
        "if not self._gate_noise:",
        ("tests/layers/test_gated_recurrence.py",),
    ),
    Fault(
        "run: the test score is taken on the training split",
        TRAINING + "parts.py",
        'self.test = self._evaluator("test", "evaluation.test_size", asked.test_size)',
        'self.test = self._evaluator("train", "", min(asked.test_size, 20))',
        _training("run"),
    ),
    Fault(
        "run: validation is drawn from the test split",
        TRAINING + "parts.py",
        '"validation", "evaluation.validation_size", asked.validation_size',
        '"test", "evaluation.validation_size", asked.validation_size',
        _training("run"),
    ),
    Fault(
        "search: an attempt begins with the weights of the first one",
        TRAINING + "running.py",
        "build_model(self.config, self.task, number)",
        "build_model(self.config, self.task)",
        _training("search"),
    ),
    Fault(
        "search: a new attempt keeps the state of the optimiser",
        TRAINING + "trainer.py",
        "        self.optimizer.state.clear()\n",
        "",
        _training("search"),
    ),
    Fault(
        "search: schedules do not wait for its end",
        TRAINING + "running.py",
        "        self.trainer.origin = self.search.origin\n",
        "",
        _training("search"),
    ),
    Fault(
        "search: an attempt is tested on its training length",
        TRAINING + "parts.py",
        "                search.length,\n",
        "                None,\n",
        _training("search"),
    ),
    Fault(
        "search: a failed attempt may be the best of the run",
        TRAINING + "running.py",
        "            self.selections.forget()\n",
        "",
        _training("search"),
    ),
    Fault(
        "search: a checkpoint forgets the attempts",
        TRAINING + "running.py",
        '            self.search.restore(state["search"])\n',
        "            pass\n",
        _training("resume"),
    ),
    Fault(
        "run: the best by test is kept as the best by validation",
        TRAINING + "selections.py",
        "return accuracy(selection.validation)",
        "return accuracy(selection.test[self._length])",
        _training("run"),
    ),
    Fault(
        "run: the depth is not passed on",
        TRAINING + "config.py",
        "depth = self.num_layers or len(self.layers)",
        "depth = len(self.layers)",
        _training("config", "fields"),
    ),
    Fault(
        "run: the residual is not passed on",
        TRAINING + "parts.py",
        "        residual=model.residual,\n",
        "",
        _training("fields"),
    ),
    Fault(
        "run: the norm is not passed on",
        TRAINING + "parts.py",
        "        norm=model.norm,\n",
        "",
        _training("fields"),
    ),
    Fault(
        "run: the channel mixer is not passed on",
        TRAINING + "parts.py",
        "        channel_mixer=model.channel_mixer,\n",
        "",
        _training("fields"),
    ),
    Fault(
        "config: asked() ignores a part",
        TRAINING + "config.py",
        "        return asked(self)\n",
        '        return {k: v for k, v in asked(self).items() if k != "evaluation"}\n',
        ("tests/test_settings.py",),
    ),
    Fault(
        "config: another process does not import the user's modules",
        TRAINING + "config.py",
        "return config_from_plain, (self.to_plain(),)",
        "return from_plain, (RunConfig, self.to_plain())",
        ("tests/experiments/test_runner.py",),
    ),
    Fault(
        "resume: the optimiser's state is forgotten",
        TRAINING + "trainer.py",
        'restore_optimizer(self.optimizer, self.model, tensors["optimizer"])',
        "restore_optimizer(self.optimizer, self.model, {})",
        _training("trainer", "resume"),
    ),
    Fault(
        "resume: a step is made twice",
        TRAINING + "trainer.py",
        'self.step = numbers["step"]',
        'self.step = max(numbers["step"] - 1, 0)',
        _training("trainer", "resume"),
    ),
    Fault(
        "resume: a run that stopped early goes on",
        TRAINING + "running.py",
        'self.stopped = state["stopped"]',
        "self.stopped = False",
        _training("resume"),
    ),
    Fault(
        "resume: a run continues with today's defaults",
        TRAINING + "run.py",
        "config = resolved_config(folder, settled)",
        "config = config.resolved()",
        _training("resume"),
    ),
    Fault(
        "folder: another run's folder is continued",
        TRAINING + "folder.py",
        "if found_difference is not None:",
        "if found_difference is not None and found_difference[0] is None:",
        _training("folder"),
    ),
    Fault(
        "folder: a flipped bit in the weights is not noticed",
        TRAINING + "folder.py",
        "if hashlib.sha256(content).hexdigest() != sha256:",
        "if not content and sha256:",
        _training("folder"),
    ),
    Fault(
        "folder: any schema is read",
        TRAINING + "folder.py",
        "if type(found) is not int or found != schema:",
        "if found is not None and found > 98:",
        _training("folder"),
    ),
    Fault(
        "folder: a killed run is still running",
        TRAINING + "folder.py",
        'if status.status == "running" and not _in_use(folder):',
        'if status.status == "running" and folder is None:',
        _training("folder"),
    ),
    Fault(
        "batches: every epoch in the same order",
        TRAINING + "batches.py",
        "np.random.SeedSequence([self._seed, epoch])",
        "np.random.SeedSequence([self._seed, 0 * epoch])",
        _training("batches"),
    ),
    Fault(
        "batches: packing drops a bound",
        TRAINING + "batches.py",
        "np.concatenate([[0], lengths.cumsum()])",
        "np.concatenate([[0], lengths.cumsum()[1:]])",
        _training("batches", "trainer"),
    ),
    Fault(
        "batches: packing keeps the padding",
        TRAINING + "batches.py",
        "kept = np.arange(longest) < lengths[:, None]",
        "kept = np.arange(longest) < longest * np.ones_like(lengths)[:, None]",
        _training("batches", "trainer"),
    ),
    Fault(
        "checkpoint: damaged files are not noticed",
        TRAINING + "checkpoint.py",
        "if hashlib.sha256(content).hexdigest() != expected:",
        "if not content and expected:",
        _training("checkpoint"),
    ),
    Fault(
        "checkpoint: a file in a checkpoint's place stops the run",
        TRAINING + "checkpoint.py",
        "    if path.is_dir() and not path.is_symlink():\n"
        "        shutil.rmtree(path)\n"
        "    else:\n"
        "        path.unlink()",
        "    shutil.rmtree(path)",
        _training("checkpoint"),
    ),
    Fault(
        "evaluation: pieces of a long sequence start from zero",
        "src/statemix/models/synthetic.py",
        "logits, state = self.extend(tokens, state)",
        "logits, state = self.extend(tokens, None)",
        _training("evaluation"),
    ),
    Fault(
        "evaluation: padding counts as the end of a sequence",
        TRAINING + "evaluation.py",
        'asked["lengths"] = self._lengths[some].to(self._device)',
        "pass",
        _training("autoencoder"),
    ),
    Fault(
        "batches: padded rows keep no lengths",
        TRAINING + "batches.py",
        "lengths = None if examples.lengths is None else torch.from_numpy(examples.lengths)",
        "lengths = None if examples.lengths is None else None",
        _training("autoencoder"),
    ),
    Fault(
        "replicas: all have the rates of the first",
        TRAINING + "stacked_optimizer.py",
        "            for optimizer in self._optimizers\n        ]",
        "            for optimizer in self._optimizers[:1] * len(self._optimizers)\n        ]",
        _training("replicas"),
    ),
    Fault(
        "replicas: the second moments start anew in every stack",
        TRAINING + "stacked_optimizer.py",
        'square.copy_(state["exp_avg_sq"])',
        "pass",
        _training("replicas"),
    ),
    Fault(
        "replicas: the groups of parameters are forgotten",
        TRAINING + "stacked_optimizer.py",
        "both = both[:, :, self._group_of]",
        "both = both[:, :, 0 * self._group_of]",
        _training("replicas"),
    ),
    Fault(
        "replicas: a step that failed changes the weights",
        TRAINING + "stack.py",
        "            restore()\n",
        "            pass\n",
        _training("replicas"),
    ),
    Fault(
        "replicas: the padding of a stack is scored",
        TRAINING + "batches.py",
        "joined([batch.targets[head] for batch in batches], IGNORED)",
        "joined([batch.targets[head] for batch in batches], 0)",
        _training("replicas"),
    ),
    Fault(
        "replicas: all are scored on the examples of the first",
        TRAINING + "evaluation.py",
        "_stacked([own.asked(some) for own in those])",
        "_stacked([those[0].asked(some) for _ in those])",
        _training("replicas"),
    ),
    Fault(
        "replicas: those ahead do not wait for the others",
        TRAINING + "replicas.py",
        "if self.runs[place].trainer.step == least]",
        "if self.runs[place].trainer.step >= least]",
        _training("replicas"),
    ),
    Fault(
        "replicas: after Ctrl-C only one is saved",
        TRAINING + "replicas.py",
        "self._tell(place, KeyboardInterrupt())",
        "pass",
        _training("replicas"),
    ),
    Fault(
        "replicas: those that fail are not tried alone",
        "src/statemix/experiments/groups.py",
        "ending = train_one(member, tell, checkpoint_every_s)",
        'ending = ("failed", "among replicas", "")',
        ("tests/experiments/test_groups.py",),
    ),
    Fault(
        "backbone: only the training split must score every position",
        TRAINING + "backbone.py",
        "for split in SPLITS:",
        "for split in SPLITS[:1]:",
        _training("autoencoder"),
    ),
    Fault(
        "evaluation: positions that are not scored spoil the sequence",
        TRAINING + "evaluation.py",
        "(right | ~scored).all(1)",
        "right.all(1)",
        _training("evaluation"),
    ),
    Fault(
        "evaluation: runs are chosen by the first head",
        TRAINING + "evaluation.py",
        "math.fsum(one.token_accuracy for one in scores.values()) / len(scores)",
        "next(iter(scores.values())).token_accuracy",
        _training("evaluation", "run"),
    ),
    Fault(
        "runner: one failing run stops the others",
        "src/statemix/experiments/groups.py",
        "    except Exception as error:  # noqa: BLE001  one failing run must "
        "not stop the others\n",
        "    except AssertionError as error:\n",
        ("tests/experiments/test_runner.py",),
    ),
    Fault(
        "runner: what failed is tried again unasked",
        "src/statemix/experiments/runner.py",
        '("running", "interrupted", *retry)',
        '("running", "interrupted", "diverged", "failed")',
        ("tests/experiments/test_runner.py",),
    ),
    Fault(
        "runner: a run of another process counts as failed",
        "src/statemix/experiments/groups.py",
        'return "in use", line(error), ""',
        'return "failed", line(error), ""',
        ("tests/experiments/test_runner.py", "tests/experiments/test_reproduction.py"),
    ),
    Fault(
        "runner: SIGTERM ends the parent without a word",
        "src/statemix/experiments/runner.py",
        "with _terminable(), team as workers:",
        "with team as workers:",
        ("tests/experiments/test_runner.py",),
    ),
    Fault(
        "cluster: runs under way are not told to stop",
        "src/statemix/experiments/cluster.py",
        "self._ray.cancel(task)",
        "pass",
        ("tests/experiments/test_cluster.py",),
    ),
    Fault(
        "cluster: Ray keeps the handler of SIGTERM",
        "src/statemix/experiments/cluster.py",
        "signal.signal(signal.SIGTERM, handler)",
        "pass",
        ("tests/experiments/test_cluster.py",),
    ),
    Fault(
        "cluster: folders are not made absolute",
        "src/statemix/experiments/cluster.py",
        "(tree, folder.resolve())",
        "(tree, folder)",
        ("tests/experiments/test_cluster.py",),
    ),
]

EVALUATE = [
    Fault(
        "evaluate: the run's precision is ignored",
        "src/statemix/cli/evaluate.py",
        "config, fabric.autocast)",
        "config, __import__('contextlib').nullcontext)",
        ("tests/cli/test_evaluate.py",),
    ),
    Fault(
        "evaluate: the run's batches are ignored",
        "src/statemix/cli/evaluate.py",
        '"batch_size": config.batches.size',
        '"batch_size": 7',
        ("tests/cli/test_evaluate.py",),
    ),
]

EXPERIMENTS = [
    Fault(
        "suite: schedules are kept for layers that cannot follow them",
        "src/statemix/experiments/suite.py",
        "for s in schedules.attributes if s.attribute in self.schedulable)",
        "for s in schedules.attributes)",
        ("tests/experiments/test_suite.py",),
    ),
    Fault(
        "suite: folders of other runs are not refused",
        "src/statemix/experiments/suite.py",
        "settled(job.folder, request(job.config))",
        "request(job.config)",
        ("tests/experiments",),
    ),
    Fault(
        "results: a run that diverged passes for done",
        "src/statemix/experiments/results.py",
        "(ended.status, ended.message) if ended else",
        '("done", "") if ended else',
        ("tests/experiments",),
    ),
    Fault(
        "results: the best in validation is reported as the best in the test",
        "src/statemix/experiments/results.py",
        '"best_test": plain_scores(outcome.best_test.test[length])',
        '"best_test": plain_scores(outcome.best_test.validation)',
        ("tests/experiments/test_results.py",),
    ),
    Fault(
        "runner: a run that diverged is trained again unasked",
        "src/statemix/experiments/runner.py",
        '("running", "interrupted", *retry)',
        '("running", "interrupted", "diverged", *retry)',
        ("tests/experiments/test_runner.py",),
    ),
]

REPORT = [
    Fault(
        "table: runs without a result are not counted",
        "src/statemix/report/tables.py",
        "cell = Cell(cell.values, (*cell.missing, entry.status))",
        "cell = Cell(cell.values, cell.missing)",
        ("tests/report/test_tables.py",),
    ),
    Fault(
        "numbers: almost right is written as right",
        "src/statemix/report/numbers.py",
        "if value == 1.0:",
        "if value >= 0.9995:",
        ("tests/report/test_numbers.py",),
    ),
    Fault(
        "figure: a mean covers places that some runs lack",
        "src/statemix/report/figures.py",
        "if all(x in run for run in self.runs)",
        "if any(x in run for run in self.runs)",
        ("tests/report/test_figures.py",),
    ),
    Fault(
        "colours: lines fade into the page",
        "src/statemix/report/colours.py",
        "LEAST_CONTRAST = 3.0",
        "LEAST_CONTRAST = 2.0",
        ("tests/report/test_colours.py",),
    ),
    Fault(
        "colours: layers without a colour share a hue",
        "src/statemix/report/colours.py",
        "return (hue + width / 2) % 360",
        "return 300.0",
        ("tests/report/test_colours.py",),
    ),
    Fault(
        "verdict: no error is claimed although a run is missing",
        "src/statemix/report/demo/verdict.py",
        "if not endings and all(",
        "if all(",
        ("tests/report/demo/test_verdict.py",),
    ),
    Fault(
        "verdict: long words are forgotten",
        "src/statemix/report/demo/verdict.py",
        "kept = sum(row[longest] >= SOLVED",
        "kept = sum(row[short] >= SOLVED",
        ("tests/report/demo/test_verdict.py",),
    ),
]

ANALYSIS = [
    Fault(
        "analysis: contributions of earlier inputs pass no transition",
        "src/statemix/analysis/mixing.py",
        "A[:, t].unsqueeze(1) @ found[:, t - 1, :t]",
        "found[:, t - 1, :t]",
        ("tests/analysis/test_mixing.py",),
    ),
    Fault(
        "analysis: transitions act in the wrong order",
        "src/statemix/analysis/mixing.py",
        "A[:, t].unsqueeze(1) @",
        "A[:, t].mT.unsqueeze(1) @",
        ("tests/analysis/test_mixing.py",),
    ),
    Fault(
        "analysis: the learned initial state is forgotten",
        "src/statemix/analysis/mixing.py",
        "h = A[:, t] @ h",
        "h = A[:, t] @ h * 0",
        ("tests/analysis/test_mixing.py",),
    ),
    Fault(
        "analysis: real eigenvalues count as complex",
        "src/statemix/analysis/spectra.py",
        "found.imag.abs() > TOLERANCE",
        "found.imag.abs() > 0",
        ("tests/analysis/test_spectra.py",),
    ),
    Fault(
        "analysis: one bad matrix spoils all eigenvalues",
        "src/statemix/analysis/spectra.py",
        "torch.where(finite[..., None], found, torch.nan)",
        "torch.where(finite.all(), found, torch.nan)",
        ("tests/analysis/test_spectra.py",),
    ),
    Fault(
        "analysis: entropy forgets the signs of gates",
        "src/statemix/analysis/gates.py",
        "gates.detach().double().abs()",
        "gates.detach().double().clamp(min=0)",
        ("tests/analysis/test_gates.py",),
    ),
    Fault(
        "analysis: padding counts as tokens",
        "src/statemix/analysis/inspection.py",
        "torch.cat([row[:n] for row, n in",
        "torch.cat([row[: max(n, 9)] for row, n in",
        ("tests/analysis/test_inspection.py",),
    ),
    Fault(
        "analysis: a block attention matrix has the axes of its blocks swapped",
        "src/statemix/analysis/inspection.py",
        "matrices.transpose(1, 2).reshape",
        "matrices.reshape",
        ("tests/analysis/test_inspection.py",),
    ),
    Fault(
        "analysis: hooks stay on the model",
        "src/statemix/analysis/recording.py",
        "            hook.remove()",
        "            hook.id",
        ("tests/analysis/test_recording.py",),
    ),
    Fault(
        "analysis: the observer has the companions of the controller",
        "src/statemix/layers/h_lru.py",
        'transitions if self.realization == "controller" else transitions.mT',
        "transitions",
        ("tests/layers/test_recurrence.py",),
    ),
    Fault(
        "analysis: later updates of a token spare what earlier ones wrote",
        "src/statemix/layers/delta_product.py",
        "inputs = [(reflection @ one.unsqueeze(-1)).squeeze(-1) for one in inputs]",
        "inputs = list(inputs)",
        ("tests/layers/test_recurrence.py",),
    ),
    Fault(
        "analysis: eigenvalues are waited for although their run is here",
        "src/statemix/experiments/reproduction/spectra.py",
        "            and not _is_trained(one.job.folder)\n",
        "",
        ("tests/experiments/test_spectra.py",),
    ),
    Fault(
        "analysis: steps of the figure count the start token",
        "src/statemix/experiments/reproduction/spectra.py",
        "prepended + step - 1 for",
        "step - 1 for",
        ("tests/experiments/test_spectra.py",),
    ),
    Fault(
        "analysis: imaginary parts point downwards",
        "src/statemix/report/spectra.py",
        "centre[1] - places[:, 1]",
        "centre[1] + places[:, 1]",
        ("tests/report/test_spectra.py",),
    ),
    Fault(
        "analysis: inputs are drawn as rows, states as columns",
        "src/statemix/report/inspection/mixing.py",
        "axes.imshow(values, interpolation",
        "axes.imshow(values.T, interpolation",
        ("tests/report/inspection/test_pictures.py",),
    ),
    Fault(
        "analysis: tiles of gates are transposed",
        "src/statemix/report/inspection/gates.py",
        "axis=-1).transpose(1, 0, 2)",
        "axis=-1).transpose(1, 2, 0)",
        ("tests/report/inspection/test_pictures.py",),
    ),
]

DEMO = [
    Fault(
        "demo: missing runs leave the exit code at 0",
        "src/statemix/cli/demo.py",
        "        if missing:\n",
        "        if missing and not missing:\n",
        ("tests/cli/test_demo.py",),
    ),
]

TRITON_TESTS = tuple(
    f"tests/ops/triton/test_{name}.py" for name in ("launch", "kernels", "sizes", "steps")
)

TRITON_KERNELS = [
    Fault(
        "triton: a million steps need more than 32 bits",
        TRITON + "kernels/tiles.py",
        "tl.program_id(0).to(tl.int64) * R",
        "tl.program_id(0) * R",
        TRITON_TESTS,
    ),
    Fault(
        "triton: entries are added where others may add, too",
        TRITON + "kernels/tiles.py",
        "tl.store(pointers + i * stride, tiles",
        "tl.atomic_xchg(pointers + i * stride, tiles",
        TRITON_TESTS,
    ),
    Fault(
        "triton: a chunk reads states that another program writes",
        TRITON + "kernels/block.py",
        "    h = load_all(entering + rows * M * H + lanes, H, mask, S, M)\n",
        "    h = load_all(entering + rows * M * H + lanes, H, mask, S, M)\n"
        "    h = chosen(c > 0, load_all(h_at - M * H, H, mask & (c > 0), S, M), h, M)\n",
        TRITON_TESTS,
    ),
    Fault(
        "triton: gradient of the final state dropped",
        TRITON + "kernels/block.py",
        "carry = load_all(leaving + rows * M * H + lanes, H, mask, S, M)",
        "carry = load_all(leaving + rows * M * H + lanes, H, mask & False, S, M)",
        TRITON_TESTS,
    ),
    Fault(
        "triton: gradient of the gates misses the normaliser",
        TRITON + "kernels/rows.py",
        "half -= half_h",
        "half -= 0 * half_h",
        TRITON_TESTS,
    ),
    Fault(
        "triton: sign dropped from the normaliser's gradient",
        TRITON + "kernels/rows.py",
        "half -= tl.where(f[j] > 0, half_h, tl.where(f[j] < 0, -half_h, 0.0))",
        "half -= half_h",
        TRITON_TESTS,
    ),
    Fault(
        "triton: all coefficients weigh the first entry of a state",
        TRITON + "kernels/rows.py",
        "h += g[j] * u[j]",
        "h += g[j] * u[0]",
        ("tests/ops/triton/test_sizes.py",),
    ),
    Fault(
        "triton: columns of the map of a chunk multiply other entries",
        TRITON + "kernels/carries.py",
        "tl.where(entry == j, x, 0.0)",
        "tl.where(entry == (j + 1) % M, x, 0.0)",
        TRITON_TESTS,
    ),
    Fault(
        "triton: backward, maps are followed without being transposed",
        TRITON + "kernels/carries.py",
        "ENTRY: tl.constexpr = M * H if REVERSE else H",
        "ENTRY: tl.constexpr = H",
        TRITON_TESTS,
    ),
    Fault(
        "triton: the gradient of the final state does not enter the last chunk",
        TRITON + "kernels/block.py",
        "mask & (t + 1 == stop), S, M)",
        "mask & (t < 0), S, M)",
        TRITON_TESTS,
    ),
    Fault(
        "triton: maps that were lost are not found again",
        TRITON + "launch.py",
        "        if maps is None:\n            maps = problem.mapped(",
        "        if maps is None:\n            maps = initial.new_zeros(problem.num_maps, "
        "problem.m + 1, problem.m, problem.num_units)\n            problem.mapped(",
        TRITON_TESTS,
    ),
    Fault(
        "triton: rows that do not exist change gradients",
        TRITON + "kernels/block.py",
        "sums = chosen(exists, more, sums, M) if i < MISSING else more",
        "sums = more",
        ("tests/ops/triton/test_sizes.py",),
    ),
    Fault(
        "triton: steps before the first one are read",
        TRITON + "kernels/reflect.py",
        "dy_all = load_steps(dy_at, all_live, S, STEPS, M)\n        for step",
        "dy_all = load_part(dy_at, mask, S, 0, STEPS * M)\n        for step",
        ("tests/ops/triton/test_launch.py",),
    ),
    Fault(
        "triton: maps of 16 bits",
        TRITON + "problems.py",
        "like.new_empty(*counts, self.m, self.num_units)\n",
        "like.new_empty(*counts, self.m, self.num_units, dtype=self.dtype)\n",
        ("tests/ops/triton/test_sizes.py",),
    ),
    Fault(
        "triton: a chunk of a packed row goes on after its sequence",
        TRITON + "kernels/block.py",
        "end = tl.minimum(t + chunk, stop)",
        "end = tl.minimum(t + chunk, T)",
        TRITON_TESTS,
    ),
    Fault(
        "triton: an empty sequence has minus one map",
        "src/statemix/ops/packing.py",
        "(bounds.diff() - 1).clamp(min=0) // chunk",
        "(bounds.diff() - 1) // chunk",
        ("tests/ops/test_packing.py",),
    ),
    Fault(
        "triton: a bound is copied to the device",
        "src/statemix/ops/packing.py",
        "bounds[:1].fill_(0)",
        "bounds[0] = 0",
        ("tests/ops/test_packing.py",),
    ),
    Fault(
        "triton: chunks are counted like maps",
        TRITON + "kernels/tiles.py",
        "        if not MAPS:\n            c -= sequence\n",
        "",
        TRITON_TESTS,
    ),
    Fault(
        "triton: a normaliser of no gates divides by zero",
        TRITON + "kernels/rows.py",
        "reciprocal(_raised(total)) * 2.0**-7",
        "reciprocal(total) * 2.0**-7",
        TRITON_TESTS,
    ),
    Fault(
        "triton: chunks that no sequence has write a final state",
        "src/statemix/ops/packing.py",
        "return torch.where(sequence == num_sequences, -1, sequence)",
        "return sequence.clamp(max=num_sequences - 1)",
        TRITON_TESTS,
    ),
    Fault(
        "triton: bounds of packed sequences are read back",
        "src/statemix/ops/packing.py",
        ".clamp(0, length).cummax(0)",
        ".clamp(0, int(cu_seqlens.max())).cummax(0)",
        TRITON_TESTS,
    ),
    Fault(
        "triton: what a lag adds to the adjoint does not move a step",
        TRITON + "kernels/lag.py",
        "later = pending[i + 1] if i + 1 < M else zero\n                moved",
        "later = pending[i] if i + 1 < M else zero\n                moved",
        TRITON_TESTS,
    ),
    Fault(
        "triton: a reflection does not bend with the length of its vector",
        TRITON + "kernels/reflect.py",
        " + bent * w[j]",
        "",
        TRITON_TESTS,
    ),
    Fault(
        "triton: of the steps that are read at once, all have the states of the first",
        TRITON + "kernels/block.py",
        "apart(states + (b * T + t - step - 1) * M * H + lanes, H, M)",
        "apart(states + (b * T + t - 1) * M * H + lanes, H, M)",
        TRITON_TESTS,
    ),
    Fault(
        "triton: a step that does not exist changes the gradient of the initial state",
        TRITON + "kernels/block.py",
        "carry = chosen(live, sums, before, M) if RAGGED else sums\n            t -= 1\n"
        "            dg_at",
        "carry = sums\n            t -= 1\n            dg_at",
        TRITON_TESTS,
    ),
    Fault(
        "triton: a length that steps do not divide is read beyond its end",
        TRITON + "problems.py",
        "self.ragged or self.chunk % steps != 0",
        "self.ragged",
        TRITON_TESTS,
    ),
    Fault(
        "triton: tanh of float32 gates has 11 digits, too",
        TRITON + "plan.py",
        'if gate == "tanh" and bfloat16 else',
        'if gate == "tanh" else',
        ("tests/ops/triton/test_sizes.py",),
    ),
    Fault(
        "triton: the reciprocal of the largest sum of gates is zero",
        TRITON + "kernels/rows.py",
        """            total += tl.abs(f[j]) * 2.0**-7
        p = scaled(f, reciprocal(_raised(total)) * 2.0**-7, COUNT)
""",
        """            total += tl.abs(f[j]) * 2.0**-5
        p = scaled(f, reciprocal(_raised(total)) * 2.0**-5, COUNT)
""",
        ("tests/ops/triton/test_sizes.py",),
    ),
    Fault(
        "triton: a state that has all the weight is not kept exactly",
        TRITON + "kernels/rows.py",
        "return tl.fma(tl.fma(-near, y, x), inverse, near)",
        "return near",
        ("tests/ops/triton/test_kernels.py",),
    ),
    Fault(
        "triton: steps ignore the temperature",
        TRITON + "launch.py",
        'options | {"TEMPERED": tempered}',
        'options | {"TEMPERED": False}',
        ("tests/ops/triton/test_steps.py",),
    ),
]

FAULTS = [
    *KERNELS,
    *TRITON_KERNELS,
    *PYTHON_OPS,
    *MODELS,
    *TRAINING_FAULTS,
    *EVALUATE,
    *EXPERIMENTS,
    *REPORT,
    *ANALYSIS,
    *DEMO,
]
