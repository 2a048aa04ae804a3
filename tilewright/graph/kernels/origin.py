"""Kernels that are written anew for other sizes. In: a function that writes a kernel, and a record of what it is called
with. Out: the kernel, and the same record with other numbers in the place of its own.

What is chosen by sizes, such as tiles, is chosen where the kernel is written, from the sizes in the record: a record
for symbolic sizes then differs from one for ints in those sizes alone."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tilewright.base.dtype import DType
from tilewright.base.records import field_names, record, replace
from tilewright.graph.kernels.custom import arguments_used
from tilewright.graph.kernels.nodes import param
from tilewright.graph.size_expressions import evaluate_size
from tilewright.graph.sizes import is_symbolic
from tilewright.graph.spec import Shape, max_count
from tilewright.graph.symbolic import SymbolicInt
from tilewright.graph.uop import UOp, index_const

# A number that is known, or an expression of variables.
Size = int | UOp
MAX_KERNELS = 64


def ceil_div(size: Size, step: int) -> Size:
    return -(-size // step) if isinstance(size, int) else (size + (step - 1)) // step


def greatest(size: Size) -> int:
    return size if isinstance(size, int) else int(size.vmax)


def is_multiple(size: Size, step: int) -> bool:
    """Whether the size is a multiple of the step for all values of its variables; no is always safe."""
    return isinstance(size, int) and size % step == 0


def as_node(size: Size) -> UOp:
    return index_const(size) if isinstance(size, int) else size


@record
class Origin:
    """A kernel is `write(call, *memories)`. `call` is a record; each int in it, and each node, is a number or a
    size."""

    write: Callable[..., UOp]
    call: Any

    def kernel(self, memories: Sequence[tuple[DType, Shape]], outputs: int) -> UOp:
        """The kernel, whose first memories are its outputs. It writes the whole of those that have a known size."""
        fills = tuple([slot for slot in range(outputs) if not is_symbolic(memories[slot][1])])
        return _written(self, fills, tuple([(dtype, max_count(shape)) for dtype, shape in memories]))

    def with_numbers(self, visit: Callable[[Size], Any]) -> Origin:
        """The origin with each number replaced by what `visit` returns for it; symbolic sizes become nodes."""
        call = self.call
        made = {name: _visited(getattr(call, name), visit) for name in field_names(type(call))}
        return replace(self, call=replace(call, **made))

    def fixed(self, values: Mapping[str, int]) -> Origin:
        """The origin of the kernel in which variables have these values."""
        return self.with_numbers(lambda size: evaluate_size(size, values) if isinstance(size, UOp) else size)


def _visited(value: Any, visit: Callable[[Size], Any]) -> Any:
    if isinstance(value, UOp) or (isinstance(value, int) and not isinstance(value, bool)):
        return size_of_call(visit(value))
    if isinstance(value, tuple):
        made = [_visited(part, visit) for part in value]
        return tuple(made) if type(value) is tuple else type(value)(*made)
    return value


def size_of_call(size: Any) -> Any:
    """The size as a kernel has it: a number, or an expression of variables."""
    return size.node if isinstance(size, SymbolicInt) else size


@functools.lru_cache(MAX_KERNELS)
def _written(origin: Origin, fills: tuple[int, ...], memories: tuple[tuple[DType, int], ...]) -> UOp:
    """Cached, since the layers of a model call the same kernel."""
    ast = origin.write(origin.call, *(param(n, kind, size) for n, (kind, size) in enumerate(memories)))
    return ast.replace(arg=replace(ast.arg, fills=fills))


def uses_last(ast: UOp, count: int) -> bool:
    """Whether a kernel uses the last of its memories: a launch gives symbolic sizes after those that a kernel uses."""
    return count - 1 in frozenset.union(*arguments_used(ast))
