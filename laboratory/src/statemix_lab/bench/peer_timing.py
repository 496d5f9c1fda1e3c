"""Operators of other sequence layers, measured beside ours at equal tokens and equal state.

A peer runs over as many tokens, and its state has as many entries as ours, H m, or as few less as
whole heads allow. Projections, convolutions and norms are not timed. An LSTM is timed as a whole.
"""

import copy
from collections.abc import Callable, Sequence
from functools import partial
from math import isqrt
from typing import Any, Literal, NamedTuple, cast, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from statemix.errors import RequestError
from statemix.layers import fla
from statemix.layers.chunks import delta_rule, ssd
from statemix.ops import BackendUnavailableError
from statemix_lab.bench import operator_timing
from statemix_lab.bench.harness import Measurement, Provider, unavailable_if_it_fails
from statemix_lab.bench.operator_timing import OperatorCase, timed_call
from statemix_lab.bench.timed_devices import DeviceName

PeerName = Literal["lstm", "mamba2", "delta_net", "gated_delta_net", "gated_delta_product"]
NAMES: tuple[PeerName, ...] = get_args(PeerName)

LSTM, MAMBA2 = "lstm", "mamba2"
# Peer -> updates of the memory per token, and whether it decays.
_DELTA_RULES = {
    "delta_net": (1, False),
    "gated_delta_net": (1, True),
    "gated_delta_product": (4, True),
}

# Heads are 16 x 16, the smallest matrices that tensor cores multiply.
_HEAD_DIM = 16
# Tokens that are checked: the last ones of the first sequence.
_CHECKED_TOKENS = 32


class _Problem(NamedTuple):
    """Inputs of a peer with the axes (B, T, ...), and the module if the peer is an LSTM."""

    inputs: Sequence[Tensor]
    d_outputs: Tensor
    lstm: nn.LSTM | None = None

    @property
    def leaves(self) -> list[Tensor]:
        """Inputs and weights."""
        return [*self.inputs, *(self.lstm.parameters() if self.lstm is not None else ())]


def sizes(name: str, case: OperatorCase) -> dict[str, int]:
    """Return the sizes of a peer by name, and the entries of its state."""
    if name == LSTM:
        hidden_size = max(1, case.state_size // 2)
        return {"hidden_size": hidden_size, "state_size": 2 * hidden_size}
    head_dim = min(_HEAD_DIM, isqrt(case.state_size))
    num_heads = case.state_size // head_dim**2
    updates = {"num_householder": _DELTA_RULES[name][0]} if name in _DELTA_RULES else {}
    heads = {"num_heads": num_heads, "head_dim": head_dim, **updates}
    return {**heads, "state_size": num_heads * head_dim**2}


def moved_bytes(name: str, case: OperatorCase, dtype: torch.dtype) -> int:
    """Return the bytes that any implementation of the peer has to read or write."""
    problem = _problem(name, case, dtype, "meta")
    read = sum(part.nbytes for part in problem.leaves)
    written = problem.d_outputs.nbytes
    return read + written if case.direction == "forward" else 3 * read + 2 * written


def check(names: Sequence[str], dtype: torch.dtype, device: DeviceName) -> None:
    """Raise a RequestError if a peer does not know the dtype on this device."""
    for name in names:
        if device == "cuda" and name != LSTM and dtype != torch.bfloat16:
            raise RequestError(
                f"peers on a GPU must be measured with dtype=bfloat16, got {name} with "
                f"{str(dtype).removeprefix('torch.')}: its kernels multiply numbers of 16 bits"
            )


def row(case: OperatorCase, measurement: Measurement, dtype: torch.dtype) -> dict[str, Any]:
    """Return the stored row of a peer's measurement, without its provenance."""
    name = measurement.provider
    moved = moved_bytes(name, case, dtype)
    return {**operator_timing.row(case, measurement, dtype, moved), "peer": sizes(name, case)}


def provider(
    name: str, case: OperatorCase, dtype: torch.dtype, device: DeviceName = "cpu"
) -> Provider:
    """Return the provider of a peer."""

    def prepare() -> Callable[[], Sequence[Tensor]]:
        foreign = device == "cuda" and name != LSTM
        if foreign and not fla.installed():
            raise BackendUnavailableError(
                f"{name} on a GPU needs flash-linear-attention, which {fla.missing()}"
            )
        problem = _problem(name, case, dtype, device)
        leaves, lstm = [part.requires_grad_() for part in problem.leaves], problem.lstm
        exact = torch.promote_types(dtype, torch.float32)
        memory = None if lstm is not None else _empty_memory(name, case, problem.inputs[0], exact)

        def run() -> list[Tensor]:
            if lstm is not None:
                return [lstm(problem.inputs[0])[0]]
            kernels = dtype if device == "cuda" else None
            return [_recurrence(name, problem.inputs, cast(Tensor, memory), kernels)[0].to(dtype)]

        call = timed_call(case.direction, run, leaves, problem.d_outputs)
        return partial(unavailable_if_it_fails, name, call) if foreign else call

    def error(results: Sequence[Tensor]) -> float:
        expected = _last_steps(name, case, _problem(name, case, dtype, device))
        # Gradients of weights come after those of inputs and are not compared.
        pairs = [
            (result[0, -len(right) :].double(), right)
            for result, right in zip(results, expected, strict=False)
        ]
        return max(float((actual - right).norm() / right.norm()) for actual, right in pairs)

    return Provider(name, prepare, error, note=_note(name, case))


def _note(name: str, case: OperatorCase) -> str:
    size = sizes(name, case)
    state = f"entries of state: {size['state_size']:,}, ours {case.state_size:,}"
    if name == LSTM:
        return f"torch.nn.LSTM of width {size['hidden_size']:,} with its weights; {state}"
    updates = f"; updates a token: {size['num_householder']}" if name in _DELTA_RULES else ""
    width = size["head_dim"]
    return f"heads: {size['num_heads']:,} of {width} x {width}{updates}; {state}"


def _problem(name: str, case: OperatorCase, dtype: torch.dtype, device: str) -> _Problem:
    """Return the same random numbers on every call; strengths and decays at least float32."""
    size, outer = sizes(name, case), (case.batch_size, case.length)
    generator = None if device == "meta" else torch.Generator(device).manual_seed(0)

    def normal(*shape: int, dtype: torch.dtype = dtype) -> Tensor:
        return torch.randn(*outer, *shape, generator=generator, dtype=dtype, device=device)

    if name == LSTM:
        width = size["hidden_size"]
        lstm = nn.LSTM(width, width, batch_first=True, device=device, dtype=dtype)
        for weight in lstm.parameters():
            nn.init.uniform_(weight, -(width**-0.5), width**-0.5, generator=generator)
        return _Problem([normal(width)], normal(width), lstm)
    heads, width = size["num_heads"], size["head_dim"]
    exact = torch.promote_types(dtype, torch.float32)
    decays = functional.logsigmoid(3 + normal(heads, dtype=exact))
    if name == MAMBA2:
        maps = [normal(width) * width**-0.5 for _ in range(2)]
        return _Problem([normal(heads, width), decays, *maps], normal(heads, width))
    updates, gated = _DELTA_RULES[name]
    queries = functional.normalize(normal(heads, width), dim=-1)
    keys = functional.normalize(normal(updates, heads, width), dim=-1)
    # Up to 2, so that eigenvalues reach -1.
    strengths = 2 * normal(updates, heads, dtype=exact).sigmoid()
    inputs = [queries, keys, normal(updates, heads, width), strengths, *[decays] * gated]
    return _Problem(inputs, normal(heads, width))


def _empty_memory(name: str, case: OperatorCase, like: Tensor, dtype: torch.dtype) -> Tensor:
    size = sizes(name, case)
    shape = like.shape[0], size["num_heads"], size["head_dim"], size["head_dim"]
    return like.new_zeros(shape, dtype=dtype)


def _recurrence(
    name: str, inputs: Sequence[Tensor], memory: Tensor, dtype: torch.dtype | None = None
) -> tuple[Tensor, Tensor]:
    """Return the outputs and the last memory."""
    if dtype is None:
        inputs = [part.to(memory.dtype) for part in inputs]
    if name == MAMBA2:
        x, decays, B, C = inputs
        if dtype is None:
            return ssd(x, decays, B, C, memory)
        return fla.ssd(x, decays, B, C, memory, dtype)
    q, k, v, beta, *rest = inputs
    g = rest[0] if rest else None
    if dtype is None:
        return delta_rule(q, k, v, beta, g, memory)
    return fla.delta_rule(q, k, v, beta, g, memory, dtype)


def _last_steps(name: str, case: OperatorCase, problem: _Problem) -> list[Tensor]:
    """Return last outputs of the first sequence and gradients of its last inputs, in float64."""
    start = max(case.length - _CHECKED_TOKENS, 0)
    exact = [part[:1].detach().double() for part in problem.inputs]
    before = [part[:, :start] for part in exact]
    last = [part[:, start:].requires_grad_() for part in exact]
    if problem.lstm is not None:
        outputs = copy.deepcopy(problem.lstm).double()(torch.cat([before[0], last[0]], 1))[0]
        outputs = outputs[:, start:]
    else:
        memory = _empty_memory(name, case, exact[0], torch.float64)
        if start:
            with torch.no_grad():
                _, memory = _recurrence(name, before, memory)
        steps = []
        for t in range(case.length - start):
            # A single token goes through no chunk.
            o, memory = _recurrence(name, [part[:, t : t + 1] for part in last], memory)
            steps.append(o)
        outputs = torch.cat(steps, 1)
    gradients = torch.autograd.grad(outputs, last, problem.d_outputs[:1, start:].double())
    return [part[0].detach() for part in (outputs, *gradients)]
