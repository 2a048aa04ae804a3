"""Linearisation. In: a kernel as a graph. Out: the body of a program: every node once, after its sources, inside the
loops it depends on and no others; reductions as accumulators declared in the scope that dominates their uses.

A path is a loop nest, outermost first. Output loops nest in the order of the kernel's axes; the loops that a REDUCE or
an END closes are nested inside its own path. A node belongs to the longest path of the loops it depends on. Inside a
block, nodes and whole loops are sorted topologically. AFTER, GROUP and END only state an order and are left out.

A LOAD through a version of the memory sees its content before every STORE through that version or a later one, unless
it depends on that STORE itself. These anti-dependences are added to the dependences of nodes on their sources."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator

from tilewright.base.dtype import dtypes
from tilewright.base.errors import InternalError
from tilewright.base.records import field, mutable_record
from tilewright.graph.ops import AxisType, Ops, reduce_identity
from tilewright.graph.uop import UOp, const, memory_of
from tilewright.graph.walk import consumers, map_nodes, toposort

LAUNCH_KINDS = frozenset({AxisType.GLOBAL, AxisType.THREAD, AxisType.LOCAL, AxisType.GROUP})
# Ops that state an order and compute nothing.
_ORDER = frozenset({Ops.AFTER, Ops.GROUP, Ops.END})
_NOT_IN_BODY = _ORDER | {Ops.CONST, Ops.PARAM, Ops.RANGE, Ops.SINK}

# Ends the id of the second of two loops that one loop of a reduction has become.
REST = -(1 << 20)

Path = tuple[UOp, ...]
# A node of the body, or the RANGE that stands for its whole loop, and the loops around it.
Point = tuple[UOp, Path]


@mutable_record
class Block:
    """The inside of one loop: nodes and inner loops, with what each waits for."""

    members: dict[UOp, set[UOp]] = field(default_factory=dict)  # node, or RANGE for an inner loop -> members it needs
    inner: dict[UOp, Block] = field(default_factory=dict)

    def add(self, member: UOp) -> set[UOp]:
        return self.members.setdefault(member, set())


class Lineariser:
    def __init__(self, sink: UOp, loop_paths: dict[UOp, Path]) -> None:
        self.nodes = toposort(sink)
        self.rank = {node: position for position, node in enumerate(self.nodes)}
        self.paths = dict(loop_paths)
        self.known_paths: dict[frozenset[UOp], Path] = {}
        self.accumulators: dict[UOp, tuple[UOp, UOp, UOp]] = {}
        self.done_points: dict[UOp, tuple[Point, ...]] = {}
        self.root = Block()
        self.blocks: dict[Path, Block] = {(): self.root}

    def body(self) -> list[UOp]:
        self._place_closed_loops()
        self._make_accumulators()
        for node in self.nodes:
            if node.op is Ops.REDUCE:
                self._place_reduce(node)
            elif node.op is Ops.RANGE:
                self._place_trip_count(node)
            elif node.op in _ORDER:
                self._done(node)
            elif node.op not in _NOT_IN_BODY:
                self._place(self.replaced[node], self.path_of(node), node.src)
        for first, then in accesses_before_stores(self.nodes):
            self._order((self.replaced[first], self.path_of(first)), (self.replaced[then], self.path_of(then)))
        order: list[UOp] = []
        self._emit(self.root, order)
        return order

    # ------------------------------------------------------------ paths

    def path_of(self, node: UOp) -> Path:
        """The longest path among the loops that the node depends on."""
        ranges = node.ranges
        found = self.known_paths.get(ranges)
        if found is None:
            found = self.known_paths[ranges] = max((self.paths.get(loop, ()) for loop in ranges), key=len, default=())
        return found

    def _place_closed_loops(self) -> None:
        """Outer reductions first, since an inner one may be nested in the loops of an outer one. Of loops that one node
        closes, those that more stores depend on are outside: a store happens once per iteration of its own ranges."""
        stores = [node for node in self.nodes if node.op is Ops.STORE]
        for node in reversed(self.nodes):
            if node.op is not Ops.REDUCE and node.op is not Ops.END:
                continue
            path = self.path_of(node)
            loops = [axis for axis in node.src[1:] if is_loop(axis)]
            for loop in sorted(loops, key=lambda a: (-sum(a in store.ranges for store in stores), a.arg.id)):
                path = self.paths.setdefault(loop, (*path, loop))
            self.known_paths.clear()

    def _done(self, node: UOp) -> tuple[Point, ...]:
        """What must be complete before `node` counts as complete: for an effect that END closes, its whole loop."""
        found = self.done_points.get(node)
        if found is None:
            found = self.done_points[node] = tuple(dict.fromkeys(self._points_of(node)))
        return found

    def _points_of(self, node: UOp) -> Iterable[Point]:
        if node.op is Ops.END:
            for member, path in self._done(node.src[0]):
                outermost = next((depth for depth, loop in enumerate(path) if loop in node.src[1:]), None)
                yield (member, path) if outermost is None else (path[outermost], path[:outermost])
        elif node.op is Ops.GROUP or node.op is Ops.AFTER:
            for source in node.src:
                yield from self._done(source)
        elif node.op not in _NOT_IN_BODY:
            yield self.replaced[node], self.path_of(self.rest_of.get(node, node))

    # ------------------------------------------------------------ accumulators

    def _make_accumulators(self) -> None:
        """Makes an accumulator for each reduction, and rebuilds every other node on the results."""
        started = _started_sums(self.nodes)
        self.rest_of = _peeled_reductions(self.nodes)
        added = {*started, *self.rest_of.values()}
        accs: dict[UOp, UOp] = {}

        def visit(node: UOp, src: tuple[UOp, ...]) -> UOp | None:
            if len(src) == 2 and node.op.is_elementwise and node.src[0] in added:
                return src[0]
            if node.op is not Ops.REDUCE:
                return None
            rest = self.rest_of.get(node, node)
            folded = _folded(rest)
            kept = tuple(sorted((a for a in rest.ranges if a.arg.kind.is_tile), key=lambda a: a.arg.id))
            start = started.get(node) or const(node.dtype, reduce_identity(node.arg, node.dtype))
            acc = accs.setdefault(rest, UOp(Ops.ACC, node.dtype, (start, *kept, *folded), len(accs)))
            update = UOp(Ops.ACCUMULATE, dtypes.void, (acc, src[0]), node.arg)
            total = UOp(Ops.COMBINE, node.dtype, (acc, *folded), node.arg)
            self.accumulators[node] = (acc, update, total)
            return total

        self.replaced = map_nodes(self.nodes, visit)

    # ------------------------------------------------------------ blocks

    def _block(self, path: Path) -> Block:
        found = self.blocks.get(path)
        if found is None:
            *outer, loop = path
            around = self._block(tuple(outer))
            around.add(loop)
            found = self.blocks[path] = around.inner[loop] = Block()
        return found

    def _place(self, node: UOp, path: Path, sources: tuple[UOp, ...]) -> None:
        self._block(path).add(node)
        for source in sources:
            for point in self._done(source):
                self._order(point, (node, path))

    def _place_trip_count(self, loop: UOp) -> None:
        """A loop comes after the nodes that compute its trip count."""
        path = self.paths.get(loop)
        if path is not None:
            for point in self._done(loop.src[0]):
                self._order(point, (loop, path[:-1]))

    def _order(self, first: Point, then: Point) -> None:
        """In the innermost block that contains both, `then` (or its loop) comes after `first` (or its loop)."""
        (earlier, inside), (later, around) = first, then
        if inside is not around:
            depth = 0
            for left, right in zip(inside, around, strict=False):
                if left is not right:
                    break
                depth += 1
            earlier = earlier if len(inside) == depth else inside[depth]
            later = later if len(around) == depth else around[depth]
            inside = inside[:depth]
        if earlier is later:
            if earlier.op is Ops.RANGE:
                raise InternalError(
                    f"the loop {earlier.arg} must be over before {then[0].op.name} inside of it is done; "
                    "what follows a loop needs a range of its own",
                    location=then[0].line,
                )
            return
        self._block(inside).add(later).add(earlier)

    def _place_reduce(self, node: UOp) -> None:
        acc, update, total = self.accumulators[node]
        rest = self.rest_of.get(node, node)
        home = self.path_of(rest)
        inside = self._path_inside(node, home)
        self._place(acc, home, ())
        self._place(update, inside, node.src[:1])
        self._place(total, home, ())
        self._order((acc, home), (update, inside))
        self._order((update, inside), (total, home))
        if rest is not node:
            self._order((update, inside), (self.accumulators[rest][1], self._path_inside(rest, home)))

    def _path_inside(self, reduction: UOp, home: Path) -> Path:
        return max((self.paths[loop] for loop in reduction.src[1:] if is_loop(loop)), key=len, default=home)

    def _emit(self, block: Block, order: list[UOp]) -> None:
        """Members in topological order; of those that are ready, loops and the stores to buffers between them come
        last, in the order of the kernel: adjacent parts of a buffer are written one after the other."""
        late = {member for member in block.members if member in block.inner or (block.inner and _is_output(member))}
        waiting = {member: len(needs) for member, needs in block.members.items()}
        followers: dict[UOp, list[UOp]] = {}
        for member, needs in block.members.items():
            for needed in needs:
                followers.setdefault(needed, []).append(member)
        ready: list[tuple[bool, int, int, UOp]] = []
        for number, (member, count) in enumerate(waiting.items()):
            if count == 0:
                heapq.heappush(ready, (member in late, self.rank.get(member, 0), number, member))
        numbers = {member: number for number, member in enumerate(waiting)}
        placed = 0
        while ready:
            _, _, _, member = heapq.heappop(ready)
            placed += 1
            if member in block.inner:
                loop = self.replaced[member]  # its trip count may depend on a reduction
                order.append(loop)
                self._emit(block.inner[member], order)
                order.append(UOp(Ops.END, dtypes.void, (loop,)))
            else:
                order.append(member)
            for follower in followers.get(member, ()):
                waiting[follower] -= 1
                if waiting[follower] == 0:
                    key = (follower in late, self.rank.get(follower, 0), numbers[follower], follower)
                    heapq.heappush(ready, key)
        if placed < len(waiting):
            raise _no_order([member for member, count in waiting.items() if count])


def _is_output(member: UOp) -> bool:
    return member.op is Ops.STORE and memory_of(member.src[0]).op is Ops.PARAM


def _no_order(stuck: list[UOp]) -> InternalError:
    effects = [member for member in stuck if member.op in (Ops.STORE, Ops.LOAD, Ops.RANGE)] or stuck
    names = ", ".join(f"{member.op.name} {member.arg or ''}".strip() for member in effects[:6])
    line = next((member.line for member in effects if member.line is not None), None)
    return InternalError(f"no order satisfies what {names} need of each other", location=line)


def is_loop(axis: UOp) -> bool:
    return axis.arg.kind in (AxisType.LOOP, AxisType.REDUCE)


# ---------------------------------------------------------------- anti-dependences


Version = frozenset[UOp]


def version_of(index: UOp) -> Version:
    """The effects that come before an access to the memory of an INDEX. The ranges among them name the loop of the
    access, and are not effects."""
    seen: set[UOp] = set()
    while index.op is Ops.INDEX or index.op is Ops.AFTER:
        if index.op is Ops.AFTER:
            seen.update(source for source in index.src[1:] if source.op is not Ops.RANGE)
        index = index.src[0]
    return frozenset(seen)


def accesses_before_stores(nodes: list[UOp]) -> Iterator[tuple[UOp, UOp]]:
    """(LOAD, STORE) for each memory that a kernel both reads and writes."""
    stores: dict[UOp, list[UOp]] = {}
    for node in nodes:
        if node.op is Ops.STORE:
            stores.setdefault(memory_of(node.src[0]), []).append(node)
    loads = [node for node in nodes if node.op is Ops.LOAD and memory_of(node.src[0]) in stores]
    if not loads:
        return
    versions = {node: version_of(node.src[0]) for node in (*loads, *(s for found in stores.values() for s in found))}
    for memory, found in stores.items():
        readers = [load for load in loads if memory_of(load.src[0]) is memory]
        for store in found if readers else ():
            needing = users_below(store, nodes)
            for load in readers:
                if versions[load] <= versions[store] and load not in needing:
                    yield load, store


def users_below(node: UOp, nodes: list[UOp]) -> set[UOp]:
    """Every node that depends on `node`, directly or not. `nodes` are in topological order."""
    found = {node}
    for other in nodes:
        if not found.isdisjoint(other.src):
            found.add(other)
    return found


def _started_sums(nodes: list[UOp]) -> dict[UOp, UOp]:
    """Integer sums whose only use adds a constant, each with the constant: their accumulators start from it. Not sums
    that fold lanes, each of which would add the constant."""
    added = {
        node.src[0]: node.src[1]
        for node in nodes
        if node.op is Ops.ADD and node.src[1].is_const and node.src[0].op is Ops.REDUCE and node.src[0].arg is Ops.ADD
        if node.dtype.is_int and not any(axis.arg.kind is AxisType.UPCAST for axis in node.src[0].src[1:])
    }
    users = consumers(nodes) if added else {}
    return {total: start for total, start in added.items() if len(users[total]) == 1}


def _folded(reduction: UOp) -> tuple[UOp, ...]:
    """The axes of a reduction whose elements have an accumulator each."""
    return tuple(sorted((a for a in reduction.src[1:] if a.arg.kind is AxisType.UPCAST), key=lambda a: a.arg.id))


def _peeled_reductions(nodes: list[UOp]) -> dict[UOp, UOp]:
    """For the float reduction of a peeled iteration, or of the masked end of a loop, that of the loop, with which it
    shares accumulators: it updates them before the loop does, and their lanes are folded once."""
    pairs = {
        node.src[1]: node.src[0]
        for node in nodes
        if len(node.src) == 2 and node.dtype.is_float and all(source.op is Ops.REDUCE for source in node.src)
        if node.op is node.src[0].arg is node.src[1].arg and _folded(node.src[0]) == _folded(node.src[1])
        if any(map(is_loop, node.src[0].src[1:])) and _continues(*node.src)
    }
    users = consumers(nodes) if pairs else {}
    return {peeled: rest for peeled, rest in pairs.items() if len(users[rest]) == len(users[peeled]) == 1}


def _continues(first: UOp, second: UOp) -> bool:
    """Whether the second reduction is the peeled iteration of the first, or the end of its loop in the same nest."""
    loops = list(filter(is_loop, second.src[1:]))
    return not loops or (all(loop.arg.id[-1] == REST for loop in loops) and first.ranges == second.ranges)
