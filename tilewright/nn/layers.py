"""Layers with weights, and containers of layers. In: sizes, then tensors. Out: tensors in the dtype of the input,
whatever the dtype of the weights. A network of float32 weights computes in float16 for a float16 input: the weights are
cast where they are used, and their gradients are float32, as mixed precision requires."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tilewright.base.errors import ShapeError
from tilewright.tensor.tensor import Tensor

__all__: list[str] = [
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
    "Linear",
    "ModuleDict",
    "ModuleList",
    "PReLU",
    "ParameterDict",
    "ParameterList",
    "Sequential",
]

Sizes = int | Sequence[int]
_PADDING_MODES = ("zeros", "reflect", "replicate", "circular")


def uniform_parameter(bound: float, *shape: int) -> Tensor:
    """A parameter with initial values uniform in -bound..bound."""
    return Tensor.uniform(*shape, low=-bound, high=bound, contiguous=False, requires_grad=True)


def in_dtype_of(x: Tensor, parameter: Tensor) -> Tensor:
    """A parameter in the dtype of `x`."""
    return parameter.cast(x.dtype) if x.dtype.is_float else parameter


def optional_in_dtype_of(x: Tensor, parameter: Tensor | None) -> Tensor | None:
    return None if parameter is None else in_dtype_of(x, parameter)


def check_sizes(layer: str, **sizes: int) -> None:
    """Raises an error unless all sizes of a layer are at least 1."""
    for name, size in sizes.items():
        if not isinstance(size, int) or size < 1:
            raise ShapeError(layer, f"{name}={size!r}", "give a whole number of at least 1")


class Linear:
    """x @ weight.T + bias over the last axis."""

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        check_sizes("Linear", in_features=in_features, out_features=out_features)
        bound = 1 / math.sqrt(in_features)
        self.weight = uniform_parameter(bound, out_features, in_features)
        self.bias = uniform_parameter(bound, out_features) if bias else None

    def __call__(self, x: Tensor) -> Tensor:
        weight = in_dtype_of(x, self.weight)
        return x.linear(weight.transpose(), optional_in_dtype_of(x, self.bias))


class _Convolution:
    """Sizes and parameters common to convolutions and transposed convolutions."""

    axes = 2

    def _set_up(
        self,
        channels: tuple[int, int],
        kernel: Sizes,
        stride: Sizes,
        dilation: Sizes,
        groups: int,
        bias: bool,
        is_transposed: bool,
    ) -> None:
        name = type(self).__name__
        inputs, outputs = channels
        check_sizes(name, in_channels=inputs, out_channels=outputs, groups=groups)
        if inputs % groups or outputs % groups:
            message = f"{inputs} channels in and {outputs} out do not split into {groups} groups"
            raise ShapeError(name, message, "give multiples of `groups`")
        self.kernel_size = per_axis(name, "kernel_size", kernel, self.axes)
        self.stride = per_axis(name, "stride", stride, self.axes)
        self.dilation = per_axis(name, "dilation", dilation, self.axes)
        self.groups = groups
        rows, columns = (inputs, outputs // groups) if is_transposed else (outputs, inputs // groups)
        # torch takes the second axis of the weight as the fan in, also for a transposed convolution.
        bound = 1 / math.sqrt(columns * math.prod(self.kernel_size))
        self.weight = uniform_parameter(bound, rows, columns, *self.kernel_size)
        self.bias = uniform_parameter(bound, outputs) if bias else None


class Conv2d(_Convolution):
    """Convolution of (batch, channels, height, width). `padding` is a number, one per axis, 'valid' or 'same', of what
    `padding_mode` says: zeros, reflect, replicate or circular."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sizes,
        stride: Sizes = 1,
        padding: Sizes | str = 0,
        dilation: Sizes = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
    ) -> None:
        self._set_up((in_channels, out_channels), kernel_size, stride, dilation, groups, bias, is_transposed=False)
        self.padding = self._pads(type(self).__name__, padding)
        if padding_mode not in _PADDING_MODES:
            message = f"padding_mode={padding_mode!r}"
            raise ShapeError(type(self).__name__, message, f"give {', '.join(_PADDING_MODES)}")
        self.padding_mode = padding_mode

    def _pads(self, name: str, padding: Sizes | str) -> Sizes:
        if not isinstance(padding, str):
            return padding if isinstance(padding, int) else tuple(padding)
        if padding == "valid":
            return 0
        if padding != "same":
            raise ShapeError(name, f"padding={padding!r}", "give numbers, 'valid' or 'same'")
        if any(step != 1 for step in self.stride):
            raise ShapeError(name, f"padding='same' with stride {self.stride}", "use a stride of 1, or give numbers")
        flat: list[int] = []
        for size, gap in zip(reversed(self.kernel_size), reversed(self.dilation)):
            total = gap * (size - 1)
            flat += [total // 2, total - total // 2]  # pairs from the last axis on, the order of torch's pad
        return tuple(flat)

    def __call__(self, x: Tensor) -> Tensor:
        weight, bias = in_dtype_of(x, self.weight), optional_in_dtype_of(x, self.bias)
        padding = self.padding
        if self.padding_mode != "zeros":
            x, padding = x.pad(self._pairs(), mode=self.padding_mode), 0
        return x.conv2d(weight, bias, self.groups, self.stride, self.dilation, padding)

    def _pairs(self) -> tuple[int, ...]:
        """The padding before and after each axis, from the last axis on."""
        if not isinstance(self.padding, int) and len(self.padding) == 2 * self.axes:
            return tuple(self.padding)
        sizes = per_axis(type(self).__name__, "padding", self.padding, self.axes, least=0)
        return tuple(size for size in reversed(sizes) for _ in range(2))


class Conv1d(Conv2d):
    """Convolution of (batch, channels, length)."""

    axes = 1


class Conv3d(Conv2d):
    """Convolution of (batch, channels, depth, height, width)."""

    axes = 3


class ConvTranspose2d(_Convolution):
    """A transposed convolution, which multiplies height and width by the stride."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sizes,
        stride: Sizes = 1,
        padding: Sizes = 0,
        output_padding: Sizes = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Sizes = 1,
    ) -> None:
        self._set_up((in_channels, out_channels), kernel_size, stride, dilation, groups, bias, is_transposed=True)
        name = type(self).__name__
        self.padding = per_axis(name, "padding", padding, self.axes, least=0)
        self.output_padding = per_axis(name, "output_padding", output_padding, self.axes, least=0)

    def __call__(self, x: Tensor) -> Tensor:
        weight, bias = in_dtype_of(x, self.weight), optional_in_dtype_of(x, self.bias)
        return x.conv_transpose2d(
            weight, bias, self.groups, self.stride, self.dilation, self.padding, self.output_padding
        )


class ConvTranspose1d(ConvTranspose2d):
    """A transposed convolution of (batch, channels, length)."""

    axes = 1


class ConvTranspose3d(ConvTranspose2d):
    """A transposed convolution of (batch, channels, depth, height, width)."""

    axes = 3


class PReLU:
    """x above 0 and weight * x below, with one weight or one for each channel (axis 1)."""

    def __init__(self, num_parameters: int = 1, init: float = 0.25) -> None:
        check_sizes("PReLU", num_parameters=num_parameters)
        self.weight = Tensor.full((num_parameters,), init, requires_grad=True)

    def __call__(self, x: Tensor) -> Tensor:
        return x.prelu(in_dtype_of(x, self.weight))


def per_axis(layer: str, name: str, value: Sizes, axes: int, least: int = 1) -> tuple[int, ...]:
    """One number for each space axis."""
    sizes = (value,) * axes if isinstance(value, int) else tuple(value)
    if len(sizes) != axes or any(not isinstance(size, int) or size < least for size in sizes):
        raise ShapeError(layer, f"{name}={value!r}", f"give one number or {axes}, each at least {least}")
    return sizes


# ---------------------------------------------------------------- containers


@reprlib.recursive_repr()
def describe(model: Any) -> str:
    """The layers of a model, one per line and indented by nesting, with the shapes of their tensors."""
    parts = dict(model) if isinstance(model, dict) else dict(enumerate(model)) if _is_list(model) else vars(model)
    facts, lines = [], []
    for name, value in parts.items():
        if hasattr(value, "dtype") and hasattr(value, "requires_grad_"):
            facts.append(f"{name}={value.dtype.name}{list(value.shape)}")
        elif _is_plain(value):
            if value is not None and not str(name).startswith("_"):
                facts.append(f"{name}={value!r}")
        elif callable(value) or isinstance(value, dict) or _is_list(value):
            lines += f"({name}): {_describe_part(value)}".split("\n")
    inside = "".join(f"\n  {line}" for line in lines)
    return f"{type(model).__name__}({', '.join(facts)}{inside}{chr(10) if lines else ''})"


def _describe_part(value: Any) -> str:
    kind: Any = type(value)
    if isinstance(value, dict) or _is_list(value) or kind.__repr__ is object.__repr__:
        return str(describe(value))
    return getattr(value, "__name__", None) or repr(value)


def _is_list(value: object) -> bool:
    return isinstance(value, list | tuple)


def _is_plain(value: Any) -> bool:
    if _is_list(value):
        return all(map(_is_plain, value))
    return isinstance(value, bool | int | float | str | None)


class ModuleList(list[Any]):
    """A list of layers."""

    def __repr__(self) -> str:
        return describe(self)


class ModuleDict(dict[str, Any]):
    """Layers by name."""

    def __repr__(self) -> str:
        return describe(self)


class ParameterList(ModuleList):
    """A list of parameters: float tensors in it require gradients."""

    def __init__(self, values: Iterable[Any] = ()) -> None:
        super().__init__(map(_as_parameter, values))

    def append(self, value: Any) -> None:
        super().append(_as_parameter(value))

    def extend(self, values: Iterable[Any]) -> None:
        super().extend(map(_as_parameter, values))

    def __setitem__(self, index: Any, value: Any) -> None:
        super().__setitem__(
            index, list(map(_as_parameter, value)) if isinstance(index, slice) else _as_parameter(value)
        )


class ParameterDict(ModuleDict):
    """Parameters by name: float tensors in it require gradients."""

    def __init__(self, values: Mapping[str, Any] | Iterable[tuple[str, Any]] = ()) -> None:
        super().__init__()
        self.update(values)

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, _as_parameter(value))

    def update(self, values: Any = (), /, **named: Any) -> None:
        for name, value in dict(values, **named).items():
            self[name] = value


def _as_parameter(value: Any) -> Any:
    return value.requires_grad_() if isinstance(value, Tensor) and value.dtype.is_float else value


class Sequential(ModuleList):
    """Layers called one after another: `Sequential(Linear(4, 8), Tensor.relu, Linear(8, 2))`. A layer may be any
    function of a tensor."""

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
