"""Launching the kernels of linear algebra. In: tensors of matrices (batch, rows, columns) with elements in them. Out:
tensors that the kernels leave, and tensors whose gradient is a rule about the whole factorisation.

A factorisation is several kernels, and what each of them does has no useful gradient. So its results are computed from
detached values, and `with_gradient` copies them in one more kernel that knows the rule."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from tilewright.base.dtype import DType
from tilewright.base.errors import UnsupportedError
from tilewright.engine.memory.parts import layout_of
from tilewright.graph import build
from tilewright.graph.records import KernelInfo
from tilewright.graph.uop import UOp
from tilewright.tensor.core.base import TensorBase
from tilewright.tensor.matrices.loops import MAX_KERNELS, Loops

T = TypeVar("T", bound=TensorBase)


def run_kernel(
    kernel: Callable[..., UOp], *tensors: T | tuple[int, ...], gradient: Callable[..., Any] | None = None
) -> list[T]:
    """The tensors as the kernel leaves them. A shape stands for memory that it fills, of the dtype of the last
    tensor."""
    known = [tensor for tensor in reversed(tensors) if isinstance(tensor, TensorBase)]
    example = cast(Any, next((tensor for tensor in known if _is_divided(tensor)), known[0]))
    given = [empty(example, each) if isinstance(each, tuple) else _as_divided(each, example) for each in tensors]
    return cast("list[T]", given[0].custom_kernel(*given[1:], fxn=kernel, grad_fxn=gradient))


def empty(example: Any, shape: tuple[int, ...], dtype: DType | None = None) -> Any:
    """Memory for a result, divided over devices as the example is: by whole matrices."""
    made = example.empty(*shape, dtype=dtype or example.dtype, device=example.device)
    return _as_divided(made, example)


def _is_divided(tensor: TensorBase) -> bool:
    return not isinstance(tensor.device, str) and layout_of(tensor.uop)[0] is not None


def _as_divided(tensor: Any, example: Any) -> Any:
    """A tensor of a batch with the same matrices on each device as the example."""
    return tensor.shard_like(example) if _is_divided(example) and not _is_divided(tensor) else tensor


def check_layout(name: str, tensor: TensorBase) -> None:
    """A kernel factorises whole matrices: they may be divided among devices, but not each of them."""
    if isinstance(tensor.device, str):
        return
    axis, _ = layout_of(tensor.uop)
    if axis is not None and axis >= tensor.ndim - 2:
        message = f"the matrices of shape {tensor.shape} are divided along axis {axis}"
        raise UnsupportedError(
            name, message, "divide a batch of whole matrices, or bring them to one device with .to()"
        )


def is_zero(gradient: Any) -> bool:
    """Whether a gradient is the constant 0: that of a result that nobody used."""
    value = build.scalar_of(gradient.uop)
    return value is not None and value.is_const and value.arg == 0


# ---------------------------------------------------------------- gradients of whole factorisations


@functools.lru_cache(MAX_KERNELS)
def copy_kernel(*memory: UOp, count: int) -> UOp:
    """Copies `count` arguments into the ones before them; further ones take part in gradients alone."""
    loops = Loops()
    effects = []
    for output, source in zip(memory[:count], memory[count : 2 * count]):
        b, cell = loops.over(output.shape[0]), loops.over(output.shape[1])
        effects.append(output[b, cell].store(source[b, cell]).end(cell).end(b))
    return UOp.group(*effects).sink(arg=KernelInfo("copy_factors"))


_COPIES = {count: functools.partial(copy_kernel, count=count) for count in range(1, 4)}


def with_gradient(values: Sequence[T], inputs: Sequence[T], rule: Callable[..., Sequence[Any]]) -> list[T]:
    """The values, whose first axis is the batch, as results of the inputs. `rule(gradients, values, inputs)` is given
    None for a value that nobody used, and gives a gradient or None for each input."""
    count = len(values)
    shapes = [value.shape for value in values]
    flat = [cast(Any, value).detach().reshape(value.shape[0], -1) for value in values]
    gradient = WithGradient(rule, tuple(shape[1:] for shape in shapes))
    made = run_kernel(_COPIES[count], *(each.shape for each in flat), *flat, *inputs, gradient=gradient)
    return [cast(Any, each).reshape(shape) for each, shape in zip(made[:count], shapes)]


class WithGradient:
    """A rule about values in the shapes that each matrix of the batch has, as the gradient of the kernel that copied
    them flat. Equal rules are equal, so that equal calls are one node."""

    def __init__(self, rule: Callable[..., Sequence[Any]], shapes: tuple[tuple[int, ...], ...]) -> None:
        self._key = (rule, shapes)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WithGradient) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __call__(self, gradients: Any, *tensors: Any) -> list[Any]:
        rule, shapes = self._key
        count = len(shapes)
        arrived = gradients if isinstance(gradients, list) else [gradients]
        shaped = [None if is_zero(each) else each.reshape(-1, *shape) for each, shape in zip(arrived, shapes)]
        values = [each.reshape(-1, *shape) for each, shape in zip(tensors[:count], shapes)]
        return [None] * (2 * count) + list(rule(shaped, values, list(tensors[2 * count :])))
