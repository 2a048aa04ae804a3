"""Attention as one kernel. In: queries, keys, values and a mask on a device whose tensor cores multiply staged tiles.
Out: the result of a custom kernel, or None where no such kernel takes the call: `attention.py` then computes it from
products and a softmax. The kernels themselves are in `graph/kernels/attention.py`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from tilewright.base.dtype import dtypes
from tilewright.base.errors import DeviceError
from tilewright.base.target import TensorCore
from tilewright.graph import build
from tilewright.graph.kernels.attention import LOG2_E, Attention, Steps, forward_kernel
from tilewright.graph.kernels.attention_gradient import key_gradient_kernel, query_gradient_kernel
from tilewright.graph.kernels.values import memory_behind
from tilewright.graph.ops import Ops
from tilewright.graph.uop import UOp
from tilewright.runtime.device import open_driver
from tilewright.tensor.families.custom import CustomMixin
from tilewright.tensor.families.linalg.products import ProductsMixin

# Features of a head: no more accumulators fit the registers, and vectors of 16 bytes are copied.
MAX_FEATURES, FEATURE_STEP = 128, 8
# Fewer queries would leave most of a tile unused.
MIN_QUERIES = 16
LARGE_TILE, SMALL_TILE = 128, 64
COLUMNS = 64


class FusedMixin(CustomMixin, ProductsMixin):
    """What fused attention needs of a tensor."""


T = TypeVar("T", bound=FusedMixin)
# Attention made of other operations, of (query, key, value, mask, is causal): for gradients that no kernel computes.
Plain = Callable[..., Any]


class Layout(NamedTuple):
    """How the kernels see an operand of (batch, heads, time, features): features padded, and time before heads where it
    was made so: a projection gives (batch, time, heads, features), of which nobody needs a copy."""

    is_time_first: bool
    features: int

    def pack(self, tensor: T) -> T:
        missing = -self.features % FEATURE_STEP
        tensor = tensor.pad((0, missing)) if missing else tensor
        return tensor.transpose(1, 2) if self.is_time_first else tensor

    def unpack(self, tensor: T) -> T:
        tensor = tensor.transpose(1, 2) if self.is_time_first else tensor
        return tensor.shrink((*((0, size) for size in tensor.shape[:-1]), (0, self.features)))

    def steps(self, shape: tuple[int, ...]) -> Steps:
        _, heads, time, _ = shape
        features = self.features + -self.features % FEATURE_STEP
        if self.is_time_first:
            return Steps(heads * time * features, features, heads * features)
        return Steps(heads * time * features, time * features, features)


def fused_attention(query: T, key: T, value: T, mask: T | None, is_causal: bool, plain: Plain) -> T | None:
    """One kernel, or None where it does not fit."""
    core = _core_of(query)
    if core is None or not _fits(query, key, value, mask):
        return None
    operands = [each if each.ndim == 4 else each.unsqueeze(1) for each in (query, key, value)]
    masks = () if mask is None else (_with_heads(mask, query.ndim),)
    layouts = tuple(Layout(_is_turned(each), query.shape[-1]) for each in operands)
    (batch, heads, rows, features), keys = operands[0].shape, operands[1].shape
    call = Attention(
        core,
        batch,
        heads,
        heads // keys[1],
        rows,
        keys[2],
        features + -features % FEATURE_STEP,
        tuple(layout.steps(each.shape) for layout, each in zip(layouts, operands)),
        LOG2_E / math.sqrt(features),
        is_causal,
        _distances(masks[0].shape) if masks else None,
        LARGE_TILE if rows > SMALL_TILE else SMALL_TILE,
        COLUMNS,
    )
    packed = [layout.pack(each) for layout, each in zip(layouts, operands)]
    out = query.empty(*packed[0].shape, dtype=query.dtype, device=query.device)
    sums = query.empty(batch, heads, rows, dtype=dtypes.float32, device=query.device)
    rule = _Gradient(call, layouts, plain)
    found = out.custom_kernel(sums, *packed, *masks, fxn=_Kernel(forward_kernel, call), grad_fxn=rule)[0]
    return layouts[0].unpack(found).reshape(*query.shape)


def _core_of(query: FusedMixin) -> TensorCore | None:
    """The core that multiplies the operands' tiles where the threads put them, if the device has one."""
    if query.dtype not in (dtypes.bfloat16, dtypes.float16) or not isinstance(query.device, str):
        return None
    try:
        cores = open_driver(query.device).target.tensor_cores
    except DeviceError:  # which is told when something is computed
        return None
    return next((core for core in cores if core.operand is query.dtype and core.staged_line_bytes), None)


def _fits(query: FusedMixin, key: FusedMixin, value: FusedMixin, mask: FusedMixin | None) -> bool:
    given = (query, key, value)
    if query.ndim not in (3, 4) or any(each.ndim != query.ndim or each.dtype is not query.dtype for each in given):
        return False
    if any(0 in each.shape for each in given) or key.shape != value.shape or query.shape[-1] != key.shape[-1]:
        return False
    if query.shape[0] != key.shape[0] or (query.ndim == 4 and query.shape[1] % key.shape[1]):
        return False
    if query.shape[-2] < MIN_QUERIES or query.shape[-1] > MAX_FEATURES:
        return False
    if mask is None:
        return True
    whole = (*query.shape[:-1], key.shape[-2])
    sizes = (1,) * (len(whole) - mask.ndim) + mask.shape
    is_known = mask.dtype.is_bool or mask.dtype in (dtypes.float32, dtypes.float16, dtypes.bfloat16)
    return is_known and len(sizes) == len(whole) and all(one in (1, most) for one, most in zip(sizes, whole))


def _with_heads(mask: T, dimensions: int) -> T:
    """The mask of (batch, heads, queries, keys), each of which may be 1."""
    mask = mask.reshape(*(1,) * (dimensions - mask.ndim), *mask.shape)
    return mask if dimensions == 4 else mask.unsqueeze(1)


def _is_turned(tensor: FusedMixin) -> bool:
    return tensor.uop.op is Ops.PERMUTE and tensor.transpose(1, 2).uop.op is not Ops.PERMUTE


def _distances(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Elements from one to the next along each axis, 0 along those of size 1."""
    return tuple(math.prod(shape[axis + 1 :]) if size > 1 else 0 for axis, size in enumerate(shape))


# ---------------------------------------------------------------- kernels and gradients


@dataclass(frozen=True)
class _Kernel:
    """What writes a kernel over the arguments of a custom kernel."""

    write: Callable[..., UOp]
    call: Attention

    def __call__(self, *arguments: UOp) -> UOp:
        return self.write(self.call, *map(memory_behind, arguments))


@dataclass(frozen=True)
class _Rule:
    """What gradients of the kernels know of a call. Operands are as the kernels take them."""

    call: Attention
    layouts: tuple[Layout, ...]
    plain: Plain

    def attend(self, operands: Sequence[Any], masks: Sequence[Any]) -> Any:
        """The result, made of other operations."""
        query, *keyed = (layout.unpack(each) for layout, each in zip(self.layouts, operands))
        keyed = [each.repeat_interleave(self.call.shared, 1) for each in keyed]
        return self.layouts[0].pack(self.plain(query, *keyed, *(masks or (None,)), self.call.is_causal))


def _apart(tensor: Any) -> Any:
    """The tensor as an input of its own, though it may be computed from another or be the same."""
    return tensor._new(build.set_apart(build.detach(tensor.uop)))


@dataclass(frozen=True)
class _Gradient(_Rule):
    """The gradient of the result, for the arguments of its kernel: out, logarithms of sums, operands and mask."""

    def __call__(self, upstream: Any, out: Any, sums: Any, *given: Any) -> tuple[Any, ...]:
        operands, masks, slope = given[:3], given[3:], upstream[0]
        delta = (slope.float() * out.float()).sum(-1)
        delta = delta.transpose(1, 2) if self.layouts[0].is_time_first else delta
        arguments = (*operands, slope, sums, delta, *masks)
        query, key, value = (each.empty(*each.shape, dtype=each.dtype, device=each.device) for each in operands)
        rules = [_SecondGradient(self.call, self.layouts, self.plain, targets) for targets in ((0,), (1, 2))]
        fxn = _Kernel(query_gradient_kernel, self.call)
        found = [query.custom_kernel(*arguments, fxn=fxn, grad_fxn=rules[0])[0]]
        fxn = _Kernel(key_gradient_kernel, self.call)
        found += key.custom_kernel(value, *arguments, fxn=fxn, grad_fxn=rules[1])[:2]
        for mask in masks:  # whose gradient has the size of the scores, and is computed where it is asked for
            own = _apart(mask)
            is_float = mask.dtype.is_float
            found.append(self.attend(operands, (own,)).gradient(own, gradient=slope)[0] if is_float else None)
        return (None, None, *found)


@dataclass(frozen=True)
class _SecondGradient(_Rule):
    """The gradient of the gradient of some operands, for the arguments of their kernel: outputs, operands, the gradient
    of the result, logarithms of sums, deltas and mask. It goes through the operations that attention is made of."""

    targets: tuple[int, ...]

    def __call__(self, upstream: Any, *given: Any) -> tuple[Any, ...]:
        count = len(self.targets)
        operands, slope = [_apart(each) for each in given[count : count + 3]], _apart(given[count + 3])
        masks = [_apart(each) for each in given[count + 6 :]]
        firsts = self.attend(operands, masks).gradient(*(operands[n] for n in self.targets), gradient=slope)
        wanted = (*operands, slope, *(mask for mask in masks if mask.dtype.is_float))
        upstreams = upstream if count > 1 else (upstream,)
        total = sum((first.float() * each.float()).sum() for first, each in zip(firsts, upstreams))
        found = iter(total.gradient(*wanted))
        results = [next(found) for _ in range(4)]
        return (*(None,) * count, *results, None, None, *(next(found) if m.dtype.is_float else None for m in masks))
