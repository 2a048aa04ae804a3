"""What the kernels of attention share. In: the operands of a call. Out: whether a kernel may take them, their strides,
the results of a kernel as tensors, and attention from other operations, for gradients that no kernel computes. Numbers
of queries and keys may be symbolic."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from tilewright.base.dtype import DType, dtypes
from tilewright.base.records import record
from tilewright.graph.kernels.nodes import call as kernel_call
from tilewright.graph.kernels.origin import Origin, Size, size_of_call, uses_last
from tilewright.graph.sizes import is_symbolic, min_size
from tilewright.graph.spec import Shape
from tilewright.graph.uop import UOp
from tilewright.tensor.families.base import Family
from tilewright.tensor.families.networks.attention_layout import separate_use, with_heads
from tilewright.tensor.families.random import RandomMixin
from tilewright.tensor.primitives.reduce import accumulate_dtype

DTYPES = (dtypes.float32, dtypes.float16, dtypes.bfloat16, dtypes.float64)

T = TypeVar("T", bound=RandomMixin)
# Attention from other operations, as a function of (query, key, value, mask, is causal, dropout, random state).
Plain = Callable[..., Any]


def fits(query: Family, key: Family, value: Family, mask: Family | None) -> bool:
    """Whether the operands are queries, keys and values of one dtype for the same or shared heads, each with an
    element, and a mask that broadcasts to the scores."""
    given = (query, key, value)
    if query.ndim < 2 or query.dtype not in DTYPES:
        return False
    if any(each.dtype is not query.dtype or each.ndim != query.ndim for each in given):
        return False
    if any(is_symbolic((*each.shape[:-2], each.shape[-1])) or min(map(min_size, each.shape)) < 1 for each in given):
        return False
    if query.shape[-1] != key.shape[-1] or key.shape[:-1] != value.shape[:-1]:
        return False
    if any(one not in (1, most) for one, most in zip(key.shape[:-3], query.shape[:-3])):
        return False
    if query.ndim > 2 and query.shape[-3] % key.shape[-3]:
        return False
    if mask is None:
        return True
    whole = (*query.shape[:-1], key.shape[-2])
    sizes = (1,) * (len(whole) - mask.ndim) + mask.shape
    # A number of a wider dtype that the scores do not hold would be infinite among them.
    widest = accumulate_dtype(query.dtype).bits
    is_known = mask.dtype.is_bool or (mask.dtype in DTYPES and mask.dtype.bits <= widest)
    is_dense = query.ndim <= 4 and len(sizes) == len(whole)
    return is_known and is_dense and all(one in (1, most) for one, most in zip(sizes, whole))


def held_rows(numbers: Any, sums: Any, mask: object) -> Any:
    """Numbers of each row, 0 for rows that see no key. `sums` have the maxima and 1 / totals: such a row, whose result
    is NaN, has no part in the gradients of queries and keys, as a mask makes its slopes 0."""
    return numbers if mask is None else sums[1].eq(math.inf).where(0.0, numbers)


def as_heads(tensor: T) -> T:
    """The tensor as (batch, heads, time, features)."""
    heads = tensor.shape[-3] if tensor.ndim > 2 else 1
    return tensor.reshape(math.prod(tensor.shape[:-3]), heads, *tensor.shape[-2:])


def distances(shape: Shape) -> tuple[Size | None, ...]:
    """The stride of each axis, None for axes of size 1."""
    steps: list[Size | None] = []
    step: int = 1
    for size in reversed(shape):
        steps.append(None if size == 1 else size_of_call(step))
        step = step * size
    return tuple(reversed(steps))


def call_facts(query: T, key: T, value: T, mask: T | None, is_causal: bool, dropout: float) -> dict[str, Any]:
    """The fields of an `AttentionCall`."""
    heads, key_heads = (each.shape[-3] if each.ndim > 2 else 1 for each in (query, key))
    return {
        "dtype": accumulate_dtype(query.dtype),
        "batch": math.prod(query.shape[:-3]),
        "heads": heads,
        "shared": heads // key_heads,
        "queries": size_of_call(query.shape[-2]),
        "keys": size_of_call(key.shape[-2]),
        "features": query.shape[-1],
        "value_features": value.shape[-1],
        "scale": 1 / math.sqrt(query.shape[-1]),
        "is_causal": is_causal,
        "mask": None if mask is None else distances(with_heads(mask, 4).shape),
        "dropout": dropout,
    }


def extra_operands(query: T, key: T, mask: T | None, dropout: float) -> tuple[T, ...]:
    """The mask with 4 axes, and the state of the random numbers, where the call has them."""
    masks = () if mask is None else (with_heads(mask, 4),)
    if not dropout:
        return masks
    assert isinstance(query.device, str)
    return (*masks, query._drawn_state(math.prod((*query.shape[:-1], key.shape[-2])), query.device))


# ---------------------------------------------------------------- kernels


def call_kernel(
    write: Callable[..., UOp],
    call: Any,
    outputs: Sequence[tuple[DType, Shape]],
    sources: Sequence[T],
    gradient: Callable[..., Any] | None,
) -> list[T]:
    """The outputs of the kernel `write(call, *memories)`, which are its first memories, after it has run. Where sizes
    are symbolic it must use the last memory; others may be for its gradient."""
    first: Any = sources[0]
    memories = (*outputs, *((each.dtype, each.shape) for each in sources))
    origin = Origin(write, call)
    ast = origin.kernel(memories, len(outputs))
    sizes = tuple(dict.fromkeys(size for _, shape in memories for size in shape if is_symbolic((size,))))
    assert not sizes or uses_last(ast, len(memories))
    given = tuple([each.uop for each in sources])
    found = kernel_call(ast, outputs, given, sizes, first._gradient_of(gradient), origin)
    return [first._new(node, *sources[1:]) for node in found]


# ---------------------------------------------------------------- gradients


@record
class Rule:
    """A gradient rule of a kernel. `others` of a call are a mask and a random state, where it has them."""

    call: Any
    plain: Plain

    def attend(self, query: Any, key: Any, value: Any, others: Sequence[Any]) -> Any:
        """The result, from other operations."""
        call, rest = self.call, list(others)
        mask = rest.pop(0) if call.mask is not None else None
        keyed = [each.repeat_interleave(call.shared, 1) if call.shared > 1 else each for each in (key, value)]
        return self.plain(query, *keyed, mask, call.is_causal, call.dropout, rest[0] if rest else None)

    def of_masks(self, others: Sequence[Any], gradient: Callable[[Any], Any]) -> list[Any]:
        """A gradient for a float mask, none for a bool mask and the random state."""
        is_mask = [n == 0 and self.call.mask is not None and each.dtype.is_float for n, each in enumerate(others)]
        return [gradient(each) if flag else None for flag, each in zip(is_mask, others)]

    def mask_gradients(self, query: Any, key: Any, value: Any, others: Sequence[Any], slope: Any) -> list[Any]:
        """They have the size of the scores, and are computed only where they are used."""

        def of_mask(mask: Any) -> Any:
            own = separate_use(mask)
            return self.attend(query, key, value, (own, *others[1:])).gradient(own, gradient=slope)[0]

        return self.of_masks(others, of_mask)
