"""Malformed values of every sort."""

import decimal
import fractions
import random
from typing import Any

import numpy as np
import torch
from torch import Tensor

PLAIN: tuple[Any, ...] = (
    None, True, False, 0, 1, 2, 3, -1, 7, 2**31 - 1, 2**31, 2**53, 2**63 - 1, 2**63, 2**64,
    10**20, 10**400, -(10**30), 0.5, 1.0, -0.0, -1.5, 1e-30, 1e300, 5e-324, float("nan"),
    float("inf"), -float("inf"), 1j, "", "softmax", "train", "S_3", "S_4", "nonsense", "float",
    "cpu", "meta", "cuda", "cuda:99", "mps", "xla", "hpu", "1", "ü\n\0", "x" * 1000, b"x",
    [], [1.0], [0, 1], (), (1, 2), {}, {"a": 1}, set(), object, len, range(3), Ellipsis,
    NotImplemented, fractions.Fraction(1, 3),
    decimal.Decimal("0.5"), np.float32(1.5), np.float64("nan"), np.int64(2), np.int32(-1),
    np.bool_(True), np.array(2), np.array([1.0, 2.0]), np.zeros((2, 3)), np.array(["a"]),
    torch.float32, torch.float16, torch.int64, torch.float8_e5m2, torch.complex64, torch.strided,
    torch.Size([2]), torch.device("cpu"), torch.device("meta"), torch.device("cuda"),
    torch.device("mps"),
)  # fmt: skip
_DTYPES = (
    torch.int64, torch.int32, torch.int16, torch.uint8, torch.bool, torch.complex64,
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e5m2,
)  # fmt: skip


def plain(r: random.Random, good: Any) -> Any:
    """Any value that is no tensor."""
    del good
    return r.choice(PLAIN)


def replacement(r: random.Random, good: Any) -> Any:
    """Any value, often one that is close to a well-formed one."""
    if isinstance(good, bool):
        return r.choice([0, 1, 2, 1.5, None, "", "nonsense", [], object, np.bool_(True)])
    if isinstance(good, Tensor) and r.random() < 0.7:
        return _spoilt(r, good)
    if r.random() < 0.2:
        return _spoilt(r, torch.zeros(r.choice([(), (1,), (2,), (2, 3), (2, 3, 4)])))
    return r.choice(PLAIN)


def _spoilt(r: random.Random, good: Tensor) -> Tensor:
    changes = [
        lambda x: x.to(r.choice(_DTYPES)),
        lambda x: x.to("meta"),
        lambda x: x.unsqueeze(r.randint(0, x.ndim)),
        lambda x: x.flatten(),
        lambda x: x[None].expand(r.choice([2, 2**20, 2**40]), *x.shape),
        lambda x: x[..., :0] if x.ndim else x,
        lambda x: x[..., :-1] if x.ndim else x,
        lambda x: torch.cat([x, x], r.randrange(x.ndim)) if x.ndim else x,
        lambda x: x.transpose(0, -1) if x.ndim else x,
        lambda x: torch.full_like(x, r.choice([float("nan"), float("inf"), -float("inf")])),
        lambda x: x.to_sparse(),
        lambda x: x.flatten().to_sparse_csr() if x.ndim > 1 else x.to_sparse(),
        lambda x: torch.nested.nested_tensor(list(x)) if x.ndim else x,
        lambda x: torch.nested.nested_tensor(list(x), layout=torch.jagged) if x.ndim else x,
        lambda x: torch.quantize_per_tensor(x.float(), 0.1, 0, torch.qint8),
        lambda x: x.clone().requires_grad_(),
        lambda x: x.numpy(),
        lambda x: x.tolist(),
        lambda x: x - 1,
        lambda x: x * 1000,
        lambda x: x.to_mkldnn(),
        lambda x: torch.nn.Parameter(x),
    ]
    try:
        return r.choice(changes)(good.detach())
    except (RuntimeError, TypeError, ValueError, IndexError):
        return r.choice(PLAIN)


def shown(value: Any) -> str:
    """A short text for a value."""
    if isinstance(value, Tensor):
        layout = "nested" if value.is_nested else str(value.layout)
        try:
            shape: Any = tuple(value.shape)
        except RuntimeError:
            shape = "?"
        return f"<{value.dtype} {shape} {value.device} {layout}>"
    text = repr(value) if not isinstance(value, int) or abs(value) < 10**50 else "10**400"
    return text if len(text) < 60 else f"{text[:60]}…"
