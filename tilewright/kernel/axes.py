"""The axes of a kernel. In: a kernel (SINK) and a target. Out: its RANGE nodes in order, the stride of each in memory,
and the kernel with one of them split. Every transform is written with these."""

from __future__ import annotations

from tilewright.base.dtype import dtypes
from tilewright.base.records import field, record
from tilewright.base.target import Target
from tilewright.graph.affine import Affine, affine, from_affine
from tilewright.graph.ops import Axis, AxisType, Ops
from tilewright.graph.records import Opt
from tilewright.graph.simplify import simplify
from tilewright.graph.uop import UOp, index_const, memory_of
from tilewright.graph.walk import exchange_axis, size_of, toposort

_KIND_ORDER = {
    kind: position
    for position, kind in enumerate(
        (
            AxisType.GLOBAL,
            AxisType.THREAD,
            AxisType.LOCAL,
            AxisType.LOOP,
            AxisType.GROUP,
            AxisType.REDUCE,
            AxisType.UPCAST,
            AxisType.UNROLL,
        )
    )
}


# A target without limits, for callers that apply opts for no device.
ANY_TARGET = Target("ANY", has_threads=True, has_local=True, max_local_bytes=1 << 62, max_group_size=1 << 62)

# The ids of axes that a transform adds begin here: they are ordered after all others, whose numbers stay.
ADDED_ID = 1 << 20


def is_counted(axis: UOp) -> bool:
    """Whether the number of iterations is a constant."""
    return axis.src[0].is_const


def is_uniform(axis: UOp) -> bool:
    """Whether the number of iterations is a constant, or one number for the whole launch."""
    return not axis.src[0].ranges


def symbolic_loops(view: KernelView) -> list[UOp] | None:
    """The loops of symbolic size, where they are output loops alone and no size depends on another loop; else None."""
    found = [axis for axis in view.axes if not is_counted(axis)]
    closed = view.reduce_axes if found else ()
    is_known = all(is_uniform(axis) and axis.arg.kind is AxisType.LOOP and axis not in closed for axis in found)
    return found if is_known else None


def quotient_of(axis: UOp, amount: int) -> UOp | None:
    """`exact_quotient` of the number of iterations."""
    return exact_quotient(axis.src[0], amount)


def exact_quotient(size: UOp, amount: int) -> UOp | None:
    """A size divided by an amount; None where that is not whole for all values of variables."""
    if size.is_const:
        return None if size.arg % amount else index_const(size.arg // amount)
    form = affine(size)
    if any(number % amount for number in (form.constant, *form.terms.values())):
        return None
    divided = Affine({atom: number // amount for atom, number in form.terms.items()}, form.constant // amount)
    return from_affine(divided)


def padded_size(axis: UOp, multiple: int) -> UOp:
    """The number of iterations, rounded up to a multiple."""
    return multiple_of(ceil_div(axis.src[0], multiple), multiple)


def ceil_div(size: UOp, amount: int) -> UOp:
    """A size divided by an amount, rounded up."""
    return index_const(-(-size.arg // amount)) if size.is_const else simplify((size + (amount - 1)) // amount)


def multiple_of(size: UOp, amount: int) -> UOp:
    return index_const(size.arg * amount) if size.is_const else simplify(size * amount)


def make_range(size: int | UOp, identity: tuple[int, ...], kind: AxisType) -> UOp:
    count = size if isinstance(size, UOp) else index_const(size)
    return UOp(Ops.RANGE, dtypes.index, (count,), Axis(identity, kind))


def add_range(made: list[UOp], slot: int, size: int, kind: AxisType) -> UOp:
    """Appends the next of the loops that a transform adds for the memory of a slot."""
    made.append(make_range(size, (ADDED_ID + slot, len(made)), kind))
    return made[-1]


@record
class KernelView:
    """A kernel and the target it is for, with the facts that transforms and templates ask for."""

    sink: UOp
    target: Target
    nodes: tuple[UOp, ...]
    axes: tuple[UOp, ...]
    reduces: tuple[UOp, ...]
    index_nodes: tuple[UOp, ...]  # every INDEX, of buffers and of placeholders
    accesses: tuple[UOp, ...]  # the INDEX nodes of buffers: a placeholder is not memory traffic
    stores: tuple[UOp, ...]  # the accesses that are written
    # The kernel after each opt that a template tried, by (kernel, opt), so that it is not applied again.
    trail: dict[tuple[UOp, Opt], UOp] = field(default_factory=dict, compare=False)

    @property
    def reduce_axes(self) -> frozenset[UOp]:
        """The axes that a reduction closes, of any kind."""
        return frozenset(axis for node in self.reduces for axis in node.src[1:])

    def of_kind(self, *kinds: AxisType) -> list[UOp]:
        return [axis for axis in self.axes if axis.arg.kind in kinds]

    def sized_by(self, axis: UOp) -> list[UOp]:
        """The loops whose size depends on the axis."""
        return [loop for loop in self.axes if axis in loop.src[0].ranges]

    @property
    def free_slot(self) -> int:
        """The first slot after those of local memories."""
        return max((node.arg.slot for node in self.nodes if node.op is Ops.DEFINE_LOCAL), default=-1) + 1

    @property
    def loads(self) -> list[UOp]:
        """The accesses that are read, in the order in which STAGE numbers operands."""
        accesses = frozenset(self.accesses)
        return list(dict.fromkeys(n.src[0] for n in self.nodes if n.op is Ops.LOAD and n.src[0] in accesses))

    def closers(self, axis: UOp) -> list[UOp]:
        """The nodes that close the axis: reductions, and the END of stores."""
        ops = (Ops.REDUCE, Ops.END)
        return [node for node in self.nodes if node.op in ops and axis in node.src and axis in node.src[1:]]


def view_kernel(sink: UOp, target: Target = ANY_TARGET, trail: dict[tuple[UOp, Opt], UOp] | None = None) -> KernelView:
    # Kept on the kernel, which several steps look at before one changes it, and without the kernel: it must not hold
    # itself.
    facts = sink.cache.get("axes")
    nodes = tuple(toposort(sink))
    if facts is None:
        facts = sink.cache["axes"] = _axes_and_accesses(nodes)
    axes, reduces, index_nodes, accesses, stores = facts
    return KernelView(sink, target, nodes, axes, reduces, index_nodes, accesses, stores, {} if trail is None else trail)


def _axes_and_accesses(nodes: tuple[UOp, ...]) -> tuple[tuple[UOp, ...], ...]:
    """The axes, reductions, INDEX nodes, accesses and stores of a `KernelView`."""
    users: dict[UOp, int] = {}
    reduces, index_nodes, written = [], [], set()
    for node in nodes:
        op = node.op
        if op is Ops.RANGE:
            users[node] = 0
        elif op is Ops.INDEX:
            index_nodes.append(node)
        elif op is Ops.REDUCE:
            reduces.append(node)
            for axis in node.ranges:
                users[axis] += 1
        elif op is Ops.STORE:
            written.add(node.src[0])

    # A loop that more reductions depend on is outside the loops that they do not depend on: rows come first.
    def order(axis: UOp) -> tuple[bool, int, int, tuple[int, ...]]:
        return axis.arg.id[0] >= ADDED_ID, _KIND_ORDER[axis.arg.kind], -users[axis], axis.arg.id

    accesses = [node for node in index_nodes if memory_of(node).op is Ops.PARAM]
    stores = [access for access in accesses if access in written]
    return tuple(sorted(users, key=order)), tuple(reduces), tuple(index_nodes), tuple(accesses), tuple(stores)


def is_indirect(access: UOp, axis: UOp) -> bool:
    """Whether each iteration of a loop accesses memory at an index that it loads."""
    return any(node.op is Ops.LOAD and axis in node.ranges for node in toposort(access.src[1]))


def stride(access: UOp, axis: UOp) -> int | None:
    """The stride of an access along the axis, in elements; None where it is not constant."""
    position = access.src[1]
    if axis not in position.ranges:
        return 0
    terms = affine(position).terms
    if any(axis in atom.ranges for atom in terms if atom is not axis):
        return None
    return terms.get(axis, 0)


def split_axis(sink: UOp, axis: UOp, amount: int, inner: AxisType, inner_is_outermost: bool = False) -> UOp:
    """
    before: for i in 128                   (amount=4)
    after:  for i0 in 32: for i1 in 4      i = i0*4 + i1, i1 of kind `inner`
            with inner_is_outermost:       i = i1*32 + i0
    """
    if is_counted(axis) and amount == size_of(axis):
        return exchange_axis(sink, axis, make_range(amount, axis.arg.id, inner))
    count = quotient_of(axis, amount)
    assert count is not None
    outer_axis = make_range(count, (*axis.arg.id, 0), axis.arg.kind)
    inner_axis = make_range(amount, (*axis.arg.id, 1), inner)
    if inner_is_outermost:
        return exchange_axis(sink, axis, inner_axis * count + outer_axis)
    return exchange_axis(sink, axis, outer_axis * amount + inner_axis)
