"""Loops and order. In: a kernel as a graph. Out: the body of a program: every node once, after its sources, inside the
loops it depends on and no others; reductions as accumulators declared in the scope that dominates their uses.

A loop's place is a path of loops around it. Output loops nest in the order of the kernel's axes; the loops of a
reduction lie where its result lives. A node lies at the longest path of the loops it depends on. Inside a block,
nodes and whole loops are ordered by what they need."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from tilewright.base.dtype import dtypes
from tilewright.graph.ops import AxisType, Ops, reduce_identity
from tilewright.graph.uop import UOp, const
from tilewright.graph.walk import toposort

LAUNCH_KINDS = frozenset({AxisType.GLOBAL, AxisType.THREAD, AxisType.LOCAL, AxisType.GROUP})
_NOT_IN_BODY = frozenset({Ops.CONST, Ops.PARAM, Ops.RANGE, Ops.SINK})

Path = tuple[UOp, ...]


@dataclass
class Block:
    """The inside of one loop: nodes and inner loops, with what each waits for."""

    members: dict[UOp, set[UOp]] = field(default_factory=dict)  # node, or RANGE for an inner loop -> members it needs
    inner: dict[UOp, Block] = field(default_factory=dict)

    def add(self, member: UOp) -> set[UOp]:
        return self.members.setdefault(member, set())


class Lineariser:
    def __init__(self, sink: UOp, loop_order: tuple[UOp, ...]) -> None:
        self.nodes = toposort(sink)
        self.rank = {node: position for position, node in enumerate(self.nodes)}
        self.paths: dict[UOp, Path] = {loop: loop_order[: n + 1] for n, loop in enumerate(loop_order)}
        self.accumulators: dict[UOp, tuple[UOp, UOp, UOp]] = {}
        self.root = Block()

    def body(self) -> list[UOp]:
        self._place_reduce_loops()
        self._make_accumulators()
        for node in self.nodes:
            if node.op is Ops.REDUCE:
                self._place_reduce(node)
            elif node.op not in _NOT_IN_BODY:
                self._place(self._renamed(node), self.path_of(node), node.src)
        order: list[UOp] = []
        self._emit(self.root, order)
        return order

    # ------------------------------------------------------------ where things live

    def path_of(self, node: UOp) -> Path:
        """The longest path among the loops that the node depends on."""
        found: Path = ()
        for loop in node.ranges:
            path = self.paths.get(loop, ())
            if len(path) > len(found):
                found = path
        return found

    def _place_reduce_loops(self) -> None:
        """Outer reductions first: an inner one may lie inside the loops of an outer one."""
        for node in reversed(self.nodes):
            if node.op is not Ops.REDUCE:
                continue
            path = self.path_of(node)
            for loop in sorted((a for a in node.src[1:] if is_loop(a)), key=lambda a: a.arg.id):
                path = self.paths.setdefault(loop, (*path, loop))

    # ------------------------------------------------------------ accumulators

    def _make_accumulators(self) -> None:
        """Every node is written over results of reductions, so the exchange runs through the whole graph in order."""
        self.exchanged: dict[UOp, UOp] = {}
        for node in self.nodes:
            src = tuple(self.exchanged[s] for s in node.src)
            if node.op is not Ops.REDUCE:
                self.exchanged[node] = node if src == node.src else UOp(node.op, node.dtype, src, node.arg)
                continue
            folded = tuple(sorted((a for a in node.src[1:] if a.arg.kind is AxisType.UPCAST), key=lambda a: a.arg.id))
            kept = tuple(sorted((a for a in node.ranges if a.arg.kind.is_tile), key=lambda a: a.arg.id))
            identity = const(node.dtype, reduce_identity(node.arg, node.dtype))
            acc = UOp(Ops.ACC, node.dtype, (identity, *kept, *folded), len(self.accumulators))
            update = UOp(Ops.ACCUMULATE, dtypes.void, (acc, src[0]), node.arg)
            total = UOp(Ops.COMBINE, node.dtype, (acc, *folded), node.arg)
            self.accumulators[node] = (acc, update, total)
            self.exchanged[node] = total

    def _renamed(self, node: UOp) -> UOp:
        return self.exchanged[node]

    # ------------------------------------------------------------ blocks

    def _block(self, path: Path) -> Block:
        block = self.root
        for loop in path:
            block.add(loop)
            block = block.inner.setdefault(loop, Block())
        return block

    def _place(self, node: UOp, path: Path, sources: tuple[UOp, ...]) -> None:
        self._block(path).add(node)
        for src in sources:
            if src.op not in _NOT_IN_BODY:
                self._needs(node, path, self._renamed(src), self.path_of(src))

    def _needs(self, node: UOp, path: Path, source: UOp, source_path: Path) -> None:
        """In the block where the source lives, the node (or the loop it is in) comes after the source."""
        depth = len(source_path)
        member = node if len(path) == depth else path[depth]
        block = self._block(source_path)
        if member is not source:
            block.add(member).add(source)

    def _place_reduce(self, node: UOp) -> None:
        acc, update, total = self.accumulators[node]
        home = self.path_of(node)
        loops = [loop for loop in node.src[1:] if is_loop(loop)]
        inside = max((self.paths[loop] for loop in loops), key=len, default=home)
        self._place(acc, home, ())
        self._place(update, inside, node.src[:1])
        self._place(total, home, ())
        block = self._block(home)
        first = update if len(inside) == len(home) else inside[len(home)]
        block.add(first).add(acc)
        block.add(total).add(first)

    def _emit(self, block: Block, order: list[UOp]) -> None:
        """Members by need; among those that are ready, loops last, so that what can be done before a loop is."""
        waiting = {member: len(needs) for member, needs in block.members.items()}
        followers: dict[UOp, list[UOp]] = {}
        for member, needs in block.members.items():
            for needed in needs:
                followers.setdefault(needed, []).append(member)
        ready: list[tuple[bool, int, int, UOp]] = []
        for number, (member, count) in enumerate(waiting.items()):
            if count == 0:
                heapq.heappush(ready, (member in block.inner, self.rank.get(member, 0), number, member))
        numbers = {member: number for number, member in enumerate(waiting)}
        while ready:
            _, _, _, member = heapq.heappop(ready)
            if member in block.inner:
                order.append(member)
                self._emit(block.inner[member], order)
                order.append(UOp(Ops.END, dtypes.void, (member,)))
            else:
                order.append(member)
            for follower in followers.get(member, ()):
                waiting[follower] -= 1
                if waiting[follower] == 0:
                    key = (follower in block.inner, self.rank.get(follower, 0), numbers[follower], follower)
                    heapq.heappush(ready, key)


def is_loop(axis: UOp) -> bool:
    return axis.arg.kind in (AxisType.LOOP, AxisType.REDUCE)
