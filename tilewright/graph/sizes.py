"""Sizes, whether ints or symbolic. In: the sizes of shapes. Out: their greatest, least and present values; the greater
and the lesser of two; quotients that are exact for all values; the same sizes bound to other values; and graphs with
the values in the place of the variables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tilewright.graph.ops import Ops
from tilewright.graph.size_expressions import evaluate_size, variables_of
from tilewright.graph.symbolic import (
    SymbolicInt,
    as_size,
    bindings_of,
    combine_sizes,
    map_sizes,
    size_node,
    state,
)
from tilewright.graph.uop import UOp, const, index_const
from tilewright.graph.walk import toposort


def is_int(value: Any) -> bool:
    """A Python int, or a symbolic one; True and False are not meant where a number is."""
    return isinstance(value, int | SymbolicInt) and not isinstance(value, bool)


def is_int_tuple(value: Any) -> bool:
    return isinstance(value, tuple) and all(is_int(item) for item in value)


def is_symbolic(shape: Iterable[object]) -> bool:
    """Whether any of the sizes is symbolic."""
    return any(isinstance(size, SymbolicInt) for size in shape)


def min_size(size: int) -> int:
    """The least value that a size can have."""
    return size.least if isinstance(size, SymbolicInt) else size


def present_size(size: int) -> int:
    """The value of a size in this run, read without notifying jit."""
    return size.value if isinstance(size, SymbolicInt) else size


def present_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape with the values that its sizes have in this run."""
    return tuple([present_size(size) for size in shape]) if state.is_used else shape


def larger_size(first: int, second: int) -> int:
    """The greater of two sizes, also where bounds leave open which that is."""
    return combine_sizes(Ops.MAX, first, second) if is_symbolic((first, second)) else max(first, second)


def smaller_size(first: int, second: int) -> int:
    """The lesser of two sizes, also where bounds leave open which that is."""
    return combine_sizes(Ops.MIN, first, second) if is_symbolic((first, second)) else min(first, second)


def exact_quotient(count: int, divisor: int) -> int | None:
    """count / divisor, where the divisor divides it for all values; None where that is not provable."""
    if not is_symbolic((count, divisor)):
        return None if divisor == 0 or count % divisor else count // divisor
    from tilewright.graph.affine import Affine, affine, from_affine

    whole, part = affine(size_node(count)), affine(size_node(divisor))
    if not part.terms:
        step = part.constant
        if step == 0 or any(number % step for number in (whole.constant, *whole.terms.values())):
            return None
        form = Affine({atom: number // step for atom, number in whole.terms.items()}, whole.constant // step)
        return as_size(from_affine(form), bindings_of(count, divisor))
    if whole.terms.keys() == part.terms.keys():
        atom = next(iter(part.terms))
        ratio = whole.terms[atom] // part.terms[atom]
        return ratio if whole == part.scaled(ratio) else None
    if len(whole.terms) != 1 or len(part.terms) != 1 or whole.constant or part.constant:
        return None
    ((atom, number),), ((inner, step),) = whole.terms.items(), part.terms.items()
    factors = _factors(atom)
    for factor in _factors(inner):
        if factor not in factors:
            return None
        factors.remove(factor)
    if number % step:
        return None
    node = index_const(number // step)
    for factor in factors:
        node = node * factor
    return as_size(node, bindings_of(count, divisor))


def _factors(node: UOp) -> list[UOp]:
    return [factor for src in node.src for factor in _factors(src)] if node.op is Ops.MUL else [node]


def rebound(arg: Any, values: Mapping[str, int]) -> Any:
    """The argument with its sizes bound to other values, where they have any."""
    if isinstance(arg, SymbolicInt):
        return SymbolicInt(arg.node, tuple((n.arg[0], values[n.arg[0]]) for n in variables_of(arg.node)))
    if isinstance(arg, tuple):
        made = [rebound(part, values) for part in arg]
        return tuple(made) if type(arg) is tuple else type(arg)(*made)
    return arg


def variable_bounds(roots: Sequence[UOp]) -> dict[str, tuple[int, int]]:
    """The least and greatest value of each variable, in sizes of a tensor graph or in the index maths of kernels."""
    found: dict[str, tuple[int, int]] = {}
    pending: list[Any] = [*toposort(*roots)]
    while pending:
        part = pending.pop()
        if isinstance(part, SymbolicInt):
            found.update((variable.arg[0], variable.arg[1:]) for variable in variables_of(part.node))
        elif isinstance(part, UOp) and part.op is Ops.VARIABLE:
            found[part.arg[0]] = part.arg[1:]
        elif isinstance(part, UOp):
            pending.append(part.arg)
        elif isinstance(part, tuple):
            pending.extend(part)
    return dict(sorted(found.items()))


def variable_values(roots: Sequence[UOp], part: float = 1.0) -> dict[str, int]:
    """A value for each variable: the greatest, or a fraction of the way from the least to the greatest."""
    bounds = variable_bounds(roots).items()
    return {name: least + int(part * (greatest - least)) for name, (least, greatest) in bounds}


def fixed_nodes(roots: Sequence[UOp], values: Mapping[str, int]) -> dict[UOp, UOp]:
    """Each node of a tensor graph or a kernel with these values in place of the variables in its sizes."""
    done: dict[UOp, UOp] = {}
    for node in toposort(*roots):
        if node.op is Ops.VARIABLE and node.arg[0] in values:
            done[node] = const(node.dtype, values[node.arg[0]])
        elif node.op is Ops.SIZE:
            done[node] = const(node.dtype, _fixed(node.arg, values))
        else:
            arg = _fixed(node.arg, values)
            if node.op is Ops.CUSTOM_KERNEL and arg.sizes:
                arg = _fixed_kernel(arg, values)
            made = UOp(node.op, node.dtype, tuple([done[src] for src in node.src]), arg)
            if made.line is None:
                made.line = node.line
            done[node] = made
    return done


def _fixed_kernel(arg: Any, values: Mapping[str, int]) -> Any:
    """The argument of a custom kernel, with the kernel for these values."""
    if arg.origin is None:
        return arg._replace(ast=fixed_graph((arg.ast,), values)[0])
    origin = arg.origin.fixed(values)
    ast = origin.kernel(tuple(zip(arg.dtypes, arg.shapes)), len(arg.written))
    return arg._replace(ast=ast, sizes=(), origin=origin)


def fixed_graph(roots: Sequence[UOp], values: Mapping[str, int]) -> tuple[UOp, ...]:
    """The roots of a graph with plain sizes; the roots themselves where no variable has a value."""
    if not values:
        return tuple(roots)
    done = fixed_nodes(roots, values)
    return tuple([done[root] for root in roots])


def _fixed(arg: Any, values: Mapping[str, int]) -> Any:
    return map_sizes(arg, lambda size: evaluate_size(size.node, values))
