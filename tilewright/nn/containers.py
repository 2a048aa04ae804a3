"""Layers that hold layers, and layers without weights. In: layers or functions. Out: one of them. Names of weights are
torch's: those of a `Sequential` begin with the number of the layer. Any plain list or dict of a model works as well;
these say what they are for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright.base.errors import ShapeError
from tilewright.tensor.tensor import Tensor


class ModuleList(list[Any]):
    """A list of layers."""


class ModuleDict(dict[str, Any]):
    """Layers by name."""


class Sequential(ModuleList):
    """Layers called one behind the other: `Sequential(Linear(4, 8), Tensor.relu, Linear(8, 2))`. Functions of a tensor
    count as layers."""

    def __init__(self, *layers: Callable[[Any], Any]) -> None:
        for number, layer in enumerate(layers):
            if not callable(layer):
                message = f"entry {number} is a {type(layer).__name__}, which cannot be called"
                raise ShapeError("Sequential", message, "give layers and functions, one by one")
        super().__init__(layers)

    def __call__(self, x: Any) -> Any:
        for layer in self:
            x = layer(x)
        return x


class Dropout:
    """In training (`Tensor.train()`), elements become 0 with probability p and the others grow by 1/(1-p)."""

    def __init__(self, p: float = 0.5) -> None:
        if not 0 <= p <= 1:
            raise ShapeError("Dropout", f"p={p} is no probability", "give p in 0..1")
        self.p = p

    def __call__(self, x: Tensor) -> Tensor:
        return x.dropout(self.p)


class Identity:
    """What comes in."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Takes what the layer would that it stands for."""

    def __call__(self, x: Tensor) -> Tensor:
        return x


class Flatten:
    """Axes from `start_dim` to `end_dim` as one."""

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        self.start_dim = start_dim
        self.end_dim = end_dim

    def __call__(self, x: Tensor) -> Tensor:
        return x.flatten(self.start_dim, self.end_dim)


class _Function:
    """A method of a tensor as a layer; the arguments are those of the method."""

    method = ""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.args = args
        self.kwargs = kwargs

    def __call__(self, x: Tensor) -> Any:
        return getattr(x, self.method)(*self.args, **self.kwargs)


class ReLU(_Function):
    """max(x, 0)."""

    method = "relu"


class GELU(_Function):
    """x times the normal distribution at x."""

    method = "gelu"

    def __init__(self, approximate: str = "none") -> None:
        super().__init__(approximate)


class SiLU(_Function):
    """x * sigmoid(x)."""

    method = "silu"


class Tanh(_Function):
    """The hyperbolic tangent."""

    method = "tanh"


class Sigmoid(_Function):
    """1 / (1 + exp(-x))."""

    method = "sigmoid"


class LeakyReLU(_Function):
    """x above 0, a part of it below."""

    method = "leaky_relu"


class Softmax(_Function):
    """exp(x) / sum(exp(x)) along an axis."""

    method = "softmax"


class MaxPool2d(_Function):
    """The greatest element of each window."""

    method = "max_pool2d"

    def __init__(self, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1) -> None:
        super().__init__(kernel_size, stride, dilation, padding)


class AvgPool2d(_Function):
    """The mean of each window."""

    method = "avg_pool2d"

    def __init__(self, kernel_size: Any, stride: Any = None, padding: Any = 0) -> None:
        super().__init__(kernel_size, stride, 1, padding)


class AdaptiveAvgPool2d(_Function):
    """The means of windows that give an image of this size."""

    method = "adaptive_avg_pool2d"
