"""Launching the kernels of linear algebra. In: non-empty tensors of matrices (batch, rows, columns). Out: the results
of the kernels, and tensors whose gradient is a formula for the whole factorisation.

A kernel factorises each matrix in one thread. Where a card would take longer for that than copying the matrices to the
host, and a core of the host for the kernel, the kernel runs there (docs/decisions/0049).

A factorisation is several kernels, which have no useful gradients by themselves. So its results are computed from
detached values, and `with_gradient` copies them in one more kernel that has the gradient rule."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from tilewright.base.dtype import DType
from tilewright.base.errors import UnsupportedError
from tilewright.base.records import record
from tilewright.engine.memory.parts import layout_of
from tilewright.graph import build
from tilewright.graph.records import KernelInfo
from tilewright.graph.uop import UOp
from tilewright.runtime.device import open_driver
from tilewright.tensor.core.base import TensorBase
from tilewright.tensor.matrices.loops import MAX_KERNELS, Loops

T = TypeVar("T", bound=TensorBase)

HOST = "CPU"


def run_kernel(
    kernel: Callable[..., UOp], *tensors: T | tuple[int, ...], gradient: Callable[..., Any] | None = None
) -> list[T]:
    """The tensors after the kernel. A shape in place of a tensor is an output, of the dtype of the last tensor."""
    known = [tensor for tensor in reversed(tensors) if isinstance(tensor, TensorBase)]
    example = cast(Any, next((tensor for tensor in known if _is_divided(tensor)), known[0]))
    given = [empty(example, each) if isinstance(each, tuple) else _as_divided(each, example) for each in tensors]
    return cast("list[T]", given[0].custom_kernel(*given[1:], fxn=kernel, grad_fxn=gradient))


# What a step of a factorisation takes: a thread of a card waits for memory in each, and a core of the host computes
# vectors. Measured on an H200 and an x86-64 core, in seconds; and a copy to the host and back, with the wait for it.
CARD_STEP, HOST_STEP = 6e-8, 1e-10
COPY_SECONDS, COPY_BYTES_PER_SECOND = 1e-4, 1e10
CARD_THREADS = 1 << 14  # matrices that are factorised at the same time
# From this many steps for a matrix on, blocks take less time than one kernel, outside of jit too, where their graph is
# made at each call.
MIN_STEPS = 1 << 28


def prefers_host(*matrices: Any) -> bool:
    """Whether the host is estimated to factorise these matrices of a card sooner."""
    device = matrices[0].device
    if not isinstance(device, str):
        return False
    target = open_driver(device).target
    if not target.has_local or target.is_reference:
        return False
    batch, steps = matrices[0].shape[0], _steps(*matrices)
    nbytes = sum(math.prod(each.shape) * each.dtype.itemsize for each in matrices)
    on_card = steps * CARD_STEP * -(-batch // CARD_THREADS)
    with_host = batch * steps * HOST_STEP + COPY_SECONDS + 2 * nbytes / COPY_BYTES_PER_SECOND
    return bool(with_host < on_card)


def on_host(matrices: T, factorise: Callable[[T], Any]) -> Any:
    """The list or tuple of results that `factorise` gives on the host, on the device of the matrices."""
    found = factorise(cast(Any, matrices).to(HOST))
    return type(found)(each.to(matrices.device) for each in found)


def _steps(*matrices: Any) -> int:
    """About how many products factorising each matrix of a batch takes, with right-hand sides where there are any."""
    _, rows, columns = matrices[0].shape
    return int(rows * columns * max(each.shape[2] for each in matrices))


def is_large(work: float, *matrices: Any) -> bool:
    """Whether blocks take less time on the host than one kernel. `work` is what a step takes in the kernel, relative to
    what the graph of the blocks takes."""
    device = matrices[0].device
    if not isinstance(device, str):
        return False
    target = open_driver(device).target
    return target.has_threads and not target.has_local and work * _steps(*matrices) >= MIN_STEPS


def factorise(
    kernel: Callable[..., UOp],
    *tensors: T | tuple[int, ...],
    blocked: Callable[..., list[Any]],
    gradient: Callable[..., Any],
    work: float = 1.0,
) -> list[T]:
    """`run_kernel`; on the host where that takes less time, and in blocks where the matrices are large: `blocked` gives
    the outputs of the kernel, of which the last is given as a shape. Those are then copied by a kernel on the device,
    which has the gradient: the formula of it runs there."""
    count = 1 + max(number for number, each in enumerate(tensors) if isinstance(each, tuple))
    inputs = cast("tuple[Any, ...]", tensors[count:])
    device = inputs[0].device
    is_moved = prefers_host(*inputs)
    moved = [each.detach().to(HOST) if is_moved else each.detach() for each in inputs]
    if is_large(work, *moved):
        found = blocked(*moved)
    elif is_moved:
        outputs = [each if isinstance(each, tuple) else cast(Any, each).to(HOST) for each in tensors[:count]]
        found = run_kernel(kernel, *outputs, *moved)[:count]
    else:
        return run_kernel(kernel, *tensors, gradient=gradient)
    found = [each.to(device) for each in found]
    shapes = tuple(each.shape for each in found)
    flat = [each.reshape(each.shape[0], -1) for each in found]
    rule = Elsewhere(gradient, tuple(shape[1:] for shape in shapes))
    made = run_kernel(_COPIES[count], *(empty(each, each.shape) for each in flat), *flat, *inputs, gradient=rule)
    return [*(cast(Any, each).reshape(shape) for each, shape in zip(made, shapes)), *inputs]


def empty(example: Any, shape: tuple[int, ...], dtype: DType | None = None) -> Any:
    """Memory for a result, sharded as the example is: by whole matrices."""
    made = example.empty(*shape, dtype=dtype or example.dtype, device=example.device)
    return _as_divided(made, example)


def _is_divided(tensor: TensorBase) -> bool:
    return not isinstance(tensor.device, str) and layout_of(tensor.uop)[0] is not None


def _as_divided(tensor: Any, example: Any) -> Any:
    """A tensor of a batch with the same matrices on each device as the example."""
    return tensor.shard_like(example) if _is_divided(example) and not _is_divided(tensor) else tensor


def check_layout(name: str, tensor: TensorBase) -> None:
    """Raises an error where matrices themselves are sharded: a kernel factorises whole matrices, so only the batch may
    be."""
    if isinstance(tensor.device, str):
        return
    axis, _ = layout_of(tensor.uop)
    if axis is not None and axis >= tensor.ndim - 2:
        message = f"the matrices of shape {tensor.shape} are sharded along axis {axis}"
        raise UnsupportedError(name, message, "shard a batch of whole matrices, or move them to one device with .to()")


def is_zero(gradient: Any) -> bool:
    """Whether a gradient is the constant 0, that of an unused result."""
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


_COPIES = {count: functools.partial(copy_kernel, count=count) for count in range(1, 5)}


def with_gradient(values: Sequence[T], inputs: Sequence[T], rule: Callable[..., Sequence[Any]]) -> list[T]:
    """The values, whose first axis is the batch, as results of the inputs. `rule(gradients, values, inputs)` gets None
    for an unused value, and returns a gradient or None for each input."""
    count = len(values)
    shapes = [value.shape for value in values]
    flat = [cast(Any, value).detach().reshape(value.shape[0], -1) for value in values]
    gradient = WithGradient(rule, tuple(shape[1:] for shape in shapes))
    made = run_kernel(_COPIES[count], *(each.shape for each in flat), *flat, *inputs, gradient=gradient)
    return [cast(Any, each).reshape(shape) for each, shape in zip(made[:count], shapes)]


def _whole(flat: Sequence[Any], shapes: Sequence[tuple[int, ...]]) -> list[Any]:
    """Batches of these shapes, as many as there are shapes."""
    return [each.reshape(-1, *shape) for each, shape in zip(flat, shapes)]


@record
class Elsewhere:
    """The rule of a kernel whose outputs were computed elsewhere, as the gradient of the kernel that copies them."""

    rule: Callable[..., Sequence[Any]]
    shapes: tuple[tuple[int, ...], ...]

    def __call__(self, gradients: Any, *tensors: Any) -> list[Any]:
        count, is_one = len(self.shapes), not isinstance(gradients, list)
        arrived = _whole([gradients] if is_one else gradients, self.shapes)
        outputs = _whole(tensors, self.shapes)
        found = self.rule(arrived[0] if is_one else arrived, *outputs, *tensors[2 * count :])
        return [*found[:count], *[None] * count, *found[count:]]


@record
class WithGradient:
    """A rule in the shapes of the matrices, as the gradient of the kernel that copied them flat. Rules compare by
    value, so that equal calls are one node."""

    rule: Callable[..., Sequence[Any]]
    shapes: tuple[tuple[int, ...], ...]

    def __call__(self, gradients: Any, *tensors: Any) -> list[Any]:
        count = len(self.shapes)
        arrived = gradients if isinstance(gradients, list) else [gradients]
        shaped = [None if is_zero(flat) else each for flat, each in zip(arrived, _whole(arrived, self.shapes))]
        found = self.rule(shaped, _whole(tensors, self.shapes), list(tensors[2 * count :]))
        return [None] * (2 * count) + list(found)
