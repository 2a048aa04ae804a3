"""What a choice of opts has to hold, whatever the sizes it settles on: properties of the kernel that it makes. Tests of
the templates name properties, and not axes, so that a better choice needs no new expectation."""

from __future__ import annotations

import math

from tests.kernel.kernels import kernel_of
from tilewright.base.target import Target
from tilewright.graph.kernels.threads import local_bytes, threads_of
from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.records import Opt, OptOps
from tilewright.graph.uop import UOp, memory_of
from tilewright.graph.walk import size_of
from tilewright.kernel.apply import apply_opt
from tilewright.kernel.axes import KernelView, stride, view_kernel
from tilewright.kernel.optimise import prepare_kernel
from tilewright.kernel.templates.choose import choose_opts, consider_plans, make_least
from tilewright.kernel.templates.template import Choice, Opts, Template

SHARED = (AxisType.LOCAL, AxisType.GROUP)


def best_plan(template: Template, view: KernelView) -> Choice | None:
    """The choice among the plans of one template."""
    return make_least(consider_plans(template, view))


def opts_of(template: Template, view: KernelView) -> Opts | None:
    choice = best_plan(template, view)
    return None if choice is None else choice.opts


class Chosen:
    """A kernel with the opts that the heuristic chooses for a target."""

    def __init__(self, sink: UOp, target: Target) -> None:
        sink = prepare_kernel(sink)
        self.before = view_kernel(sink, target)
        self.opts: tuple[Opt, ...] = choose_opts(self.before)
        for opt in self.opts:
            sink = apply_opt(sink, opt, target)
        self.view: KernelView = view_kernel(sink, target)
        self.target = target

    def count(self, *kinds: AxisType) -> int:
        """The iterations of all axes of these kinds together."""
        return math.prod(size_of(axis) for axis in self.view.of_kind(*kinds))

    def sizes(self, kind: AxisType) -> list[int]:
        return [size_of(axis) for axis in self.view.of_kind(kind)]

    def uses(self, op: OptOps) -> int:
        return sum(opt.op is op for opt in self.opts)

    @property
    def buffers(self) -> list[UOp]:
        """The loads of the kernel's own buffers, without those of copies."""
        return [load for load in self.view.loads if memory_of(load).op is Ops.PARAM]

    @property
    def threads(self) -> int:
        return threads_of(self.view.sink).count

    @property
    def local_bytes(self) -> int:
        return local_bytes(self.view.sink, self.target.warp_size)

    @property
    def tile(self) -> int:
        """Elements of the register tile of the results, without those of copies."""
        stored = frozenset(axis for store in self.view.stores for axis in store.ranges)
        return math.prod(size_of(axis) for axis in stored if axis.arg.kind.is_tile)


def chosen_for(graph: UOp, target: Target) -> Chosen:
    """The choice for the one kernel of a graph, within the limits of the target."""
    made = Chosen(kernel_of(graph), target)
    stays_in_limits(made)
    return made


def stays_in_limits(chosen: Chosen) -> None:
    assert chosen.threads <= chosen.target.max_group_size
    assert chosen.local_bytes <= max(chosen.target.max_local_bytes, 1)


def keeps_the_cores_busy(chosen: Chosen) -> None:
    """Every core has a task, and no core waits for more than half of the time."""
    tasks, cores = chosen.count(AxisType.THREAD), chosen.target.cores
    assert tasks >= cores
    assert tasks / (-(-tasks // cores) * cores) > 0.5


def stores_vectors(chosen: Chosen) -> None:
    """A tile has stride 1 in every store, of whole vectors or of all there is."""
    lanes = min(chosen.target.lanes(store.dtype) for store in chosen.view.stores)
    tiles = [a for a in chosen.view.of_kind(AxisType.UPCAST) if all(stride(s, a) == 1 for s in chosen.view.stores)]
    assert any(2 * size_of(axis) >= lanes for axis in tiles)


def loads_vectors(chosen: Chosen) -> None:
    """Along some tile, the loads of the reduction have stride 1."""
    tiles = chosen.view.of_kind(AxisType.UPCAST)
    assert any(stride(load, axis) == 1 for load in chosen.buffers for axis in tiles)


def fits_the_registers(chosen: Chosen) -> None:
    """The results of a tile that sums into registers are no more than the vector registers hold."""
    lanes = chosen.target.lanes(chosen.view.reduces[0].dtype)
    assert chosen.tile <= chosen.target.vector_registers * lanes


def adjacent_threads_read_adjacent_elements(chosen: Chosen) -> None:
    """Of the axes of a work-group, one has the stride of a thread's own vector in some load."""
    own = {size_of(axis) for axis in chosen.view.of_kind(AxisType.UPCAST)} | {1}
    assert any(stride(load, axis) in own for axis in chosen.view.of_kind(*SHARED) for load in chosen.buffers)


def fills_a_group(chosen: Chosen) -> None:
    assert chosen.threads >= 2 * max(chosen.target.warp_size, 32)


def spills(chosen: Chosen) -> None:
    """Accumulators are in local memory, no more than half of an L1 for each level of the sum."""
    assert chosen.uses(OptOps.SPILL) == 1
    memories = [node for node in chosen.view.nodes if node.op is Ops.DEFINE_LOCAL]
    assert memories
    assert all(2 * node.arg.size * node.dtype.itemsize <= chosen.target.l1_bytes for node in memories)


def does_not_spill(chosen: Chosen) -> None:
    assert chosen.uses(OptOps.SPILL) == 0
    assert not any(node.op is Ops.DEFINE_LOCAL for node in chosen.view.nodes)


def streams(chosen: Chosen) -> int:
    """Rows at a large stride that are read at a time."""
    tiles = chosen.view.of_kind(AxisType.UNROLL, AxisType.UPCAST)
    large = [a for a in tiles if any((stride(load, a) or 0) > chosen.target.page_bytes for load in chosen.buffers)]
    return math.prod(map(size_of, large))


def packs(chosen: Chosen) -> int:
    """Operands that are packed into local memory."""
    return chosen.uses(OptOps.STAGE)


def reuses_its_loads(chosen: Chosen, least: float) -> None:
    """Products of a register tile for each element that it loads."""
    (reduce,) = chosen.view.reduces[:1]
    tile = frozenset(axis for axis in reduce.ranges if axis.arg.kind.is_tile)
    inside = [node.src[0] for node in chosen.view.nodes if node.op is Ops.LOAD and node.src[0].ranges & tile]
    loaded = sum(math.prod(size_of(axis) for axis in tile & access.ranges) for access in set(inside))
    assert math.prod(map(size_of, tile)) >= least * loaded
