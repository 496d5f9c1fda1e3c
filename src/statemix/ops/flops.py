"""FLOPs of elementary functions: the one convention by which the library counts.

A multiply-add is 2 FLOPs. Every sum, product, quotient, maximum, magnitude, exponential, logarithm
and (inverse) square root of single numbers is 1. A dot product of n terms is 2n, which includes
adding it to another number: biases are free. What can be folded into weights beforehand, such as a
temperature, is free, and so are the small terms that keep divisions finite.
"""

SIGMOID = 3
"""1 / (1 + exp(-x)), without the sign."""

TANH = SIGMOID + 3
"""2 sigmoid(2 x) - 1. With it, an LSTM has the 25 H FLOPs of Dubinin et al., Table 5."""

SILU = SIGMOID + 1
"""x sigmoid(x)."""

SOFTPLUS = 3
"""log(1 + exp(x))."""


def l2_norm(size: int) -> int:
    """Return the FLOPs of dividing a vector by its length."""
    return 3 * size + 1


def rms_norm(size: int) -> int:
    """Return the FLOPs of dividing a vector by its root mean square, and of scaling its entries."""
    return 4 * size + 2


def softmax(size: int) -> int:
    """Return the FLOPs of exponentials, their sum, and division by it."""
    return 3 * size
