"""A tour of Tilewright: a tensor compiler, rebuilt small enough to read at one sitting.

Nothing here imports the package. Each section builds one of its ideas in miniature, checks it on the spot with asserts
and names the files where the real one lives. `python docs/tour.py` runs it in about a second and prints what it made.

The road, with the section that builds each part of it:

    x @ w + b   ->   a graph   ->   kernels   ->   loops and tiles   ->   a program   ->   LLVM IR   ->   numbers
    3 tensors        1 nodes        6 schedule     5 index functions      8 order          10 text        11 run
                     2 ops          4 rules        7 upcast               9 emulate                       12 compare
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import math
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partialmethod
from typing import Any, NamedTuple

import llvmlite.binding as llvm
import numpy as np

# ================================================================ 1. The node
#
# One type of node carries a program from the user's line to the machine. It has four fields, never changes, and is
# interned: the same four fields are the same object. So equality is identity, a graph is a DAG in which common
# subexpressions are common without any work, and what is found out about a node can be kept for as long as it lives.
#
# In the package: tilewright/graph/uop.py, and tilewright/graph/walk.py for the orders of visiting.

NODES: dict[tuple[Any, ...], Node] = {}


class Node:
    __slots__ = ("arg", "dtype", "op", "ranges", "shape", "src")

    def __new__(cls, op: str, dtype: str, src: tuple[Node, ...] = (), arg: Any = None) -> Node:
        key = (op, dtype, src, type(arg), arg)
        node = NODES.get(key)
        if node is None:
            node = NODES[key] = object.__new__(cls)
            node.op, node.dtype, node.src, node.arg = op, dtype, src, arg
            node.shape = OPS[op].shape(node)
            node.ranges = ranges_of(node)
        return node

    def alu(self, op: str, other: Node | float) -> Node:
        right = other if isinstance(other, Node) else Node("CONST", self.dtype, (), other)
        return Node(op, self.dtype, (self, right))

    # Index maths, and the patterns of rules about it, are written with these: both read as algebra.
    __add__, __mul__ = partialmethod(alu, "ADD"), partialmethod(alu, "MUL")
    __floordiv__, __mod__ = partialmethod(alu, "IDIV"), partialmethod(alu, "MOD")


def toposort(root: Node) -> list[Node]:
    """The root and every node below it, sources before their users. No recursion: real graphs are deep."""
    order: dict[Node, None] = {}
    stack = [(root, False)]
    while stack:
        node, is_ready = stack.pop()
        if is_ready:
            order[node] = None
        elif node not in order:
            stack.append((node, True))
            stack.extend((src, False) for src in reversed(node.src))
    return list(order)


class Axis(NamedTuple):
    """What a RANGE counts. The kind is the role the axis plays: a `loop`, a `reduce` loop or an `upcast` tile."""

    name: str
    size: int
    kind: str


def ranges_of(node: Node) -> frozenset[Node]:
    """The axes a value varies along: those of its sources, less those that a reduction closes."""
    if node.op == "RANGE":
        return frozenset((node,))
    found = frozenset().union(*(src.ranges for src in node.src))
    return found.difference(node.src[1:]) if node.op == "REDUCE" else found


# ================================================================ 2. Ops, one record each
#
# All that is known of an op stands in one place: its value, which is its meaning; the shape of its result; how a view
# moves an index; which instruction it is. To add an op is to add a line: no stage keeps a list of its own.
#
# In the package: tilewright/graph/ops.py, with the rules that ops share in tilewright/graph/spec.py.

Shape = tuple[int, ...]
Indices = tuple[Node, ...]


def elementwise(node: Node) -> Shape:
    shapes = {src.shape for src in node.src if src.shape}
    assert len(shapes) <= 1, f"{node.op} of shapes {shapes}: broadcast first"
    return next(iter(shapes), ())


class Spec(NamedTuple):
    value: Callable[..., Any] | None = None  # (arg, *sources) -> an array; a number, inside a kernel
    shape: Callable[[Node], Shape] = elementwise
    index: Callable[[Node, Indices], Indices] | None = None  # of a view: which element of the source is this one?
    text: str = ""  # in LLVM IR, with the operands as {0} and {1}


def number(value: int) -> Node:
    return Node("CONST", "index", (), value)


def flatten(indices: Indices, shape: Shape) -> Node:
    """The offset of an element in memory, in elements. The last axis is contiguous."""
    position = number(0)
    for index, size in zip(indices, shape):
        position = position * size + index
    return position


def unflatten(position: Node, shape: Shape) -> Indices:
    indices: Indices = ()
    for size in reversed(shape):
        indices = (position % size, *indices)
        position = position // size
    return indices


ADD_TO = """%{id}.old = load float, ptr {0}
  %{id}.new = fadd float %{id}.old, {1}
  store float %{id}.new, ptr {0}"""

OPS: dict[str, Spec] = {
    "CONST": Spec(lambda arg: arg),
    "INPUT": Spec(shape=lambda node: node.arg[1]),  # arg: (name, shape)
    "RANGE": Spec(),  # arg: Axis
    "PARAM": Spec(),  # arg: which of the kernel's buffers
    "VARIABLE": Spec(),  # arg: the name by which a pattern remembers what it matched
    # arithmetic, on whole arrays and on single numbers alike; IDIV and MOD are for indices, which are never negative
    "ADD": Spec(lambda _, x, y: x + y, text="{f}add {type} {0}, {1}"),
    "MUL": Spec(lambda _, x, y: x * y, text="{f}mul {type} {0}, {1}"),
    "DIV": Spec(lambda _, x, y: x / y, text="fdiv float {0}, {1}"),
    "MAX": Spec(lambda _, x, y: np.maximum(x, y), text="call float @llvm.maximum.f32(float {0}, float {1})"),
    "IDIV": Spec(lambda _, x, y: x // y, text="udiv i64 {0}, {1}"),
    "MOD": Spec(lambda _, x, y: x % y, text="urem i64 {0}, {1}"),
    # views
    "RESHAPE": Spec(
        lambda shape, x: x.reshape(shape),
        lambda node: node.arg,
        lambda node, at: unflatten(flatten(at, node.shape), node.src[0].shape),
    ),
    "EXPAND": Spec(
        lambda shape, x: np.broadcast_to(x, shape),
        lambda node: node.arg,
        lambda node, at: tuple(i if size > 1 else number(0) for i, size in zip(at, node.src[0].shape)),
    ),
    "PERMUTE": Spec(
        lambda order, x: np.transpose(x, order),
        lambda node: tuple(node.src[0].shape[axis] for axis in node.arg),
        lambda node, at: tuple(at[node.arg.index(axis)] for axis in range(len(at))),
    ),
    # a sum along the axes in arg, which stay, with size 1
    "SUM": Spec(
        lambda axes, x: x.sum(axes, keepdims=True),
        lambda node: tuple(1 if axis in node.arg else size for axis, size in enumerate(node.src[0].shape)),
    ),
    # kernels; a pointer is an array of one element
    "INDEX": Spec(lambda _, array, at: array[at : at + 1], text="getelementptr float, ptr {0}, i64 {1}"),
    "LOAD": Spec(lambda _, pointer: pointer[0], text="load float, ptr {0}"),
    "STORE": Spec(lambda _, pointer, value: np.copyto(pointer, value), text="store float {1}, ptr {0}"),
    "REDUCE": Spec(),  # (value, the ranges it is summed over...)
    # programs: an accumulator, whose sources are the tile it holds; adding to one; the end of a loop
    "ACC": Spec(lambda *_: np.zeros(1, np.float32)),
    "ACCUMULATE": Spec(lambda _, pointer, value: np.add(pointer, value, out=pointer), text=ADD_TO),
    "END": Spec(),
}

assert number(2) * 3 is number(2) * 3, "interned: equal is identical"

# An interpreter comes free with the specs, and it is the definition: what we compile later has to equal this.
#
# In the package: tilewright/graph/interpreter/evaluate.py.


def evaluate(root: Node, inputs: dict[str, np.ndarray]) -> np.ndarray:
    values: dict[Node, Any] = {}
    for node in toposort(root):
        sources = (values[src] for src in node.src)
        values[node] = inputs[node.arg[0]] if node.op == "INPUT" else OPS[node.op].value(node.arg, *sources)
    return values[root]


# ================================================================ 3. Tensors are sentences in this language
#
# A tensor computes nothing. It holds a node, and its methods make bigger ones. Even a matrix product is no op of its
# own: it is two views, a product and a sum. What makes it fast is decided much later, where the facts are.
#
# In the package: tilewright/tensor/, such as primitives/shape.py for views, families/linalg/ for products.


class Tensor:
    def __init__(self, node: Node) -> None:
        self.node = node
        self.shape = node.shape

    def make(self, op: str, arg: tuple[int, ...]) -> Tensor:
        return Tensor(Node(op, "float", (self.node,), arg))

    def broadcast_to(self, shape: Shape) -> Tensor:
        padded = (1,) * (len(shape) - len(self.shape)) + self.shape
        return self if shape == self.shape else self.make("RESHAPE", padded).make("EXPAND", shape)

    def binary(self, op: str, other: Tensor | float) -> Tensor:
        if not isinstance(other, Tensor):
            return Tensor(self.node.alu(op, float(other)))
        shape = np.broadcast_shapes(self.shape, other.shape)
        return Tensor(self.broadcast_to(shape).node.alu(op, other.broadcast_to(shape).node))

    __add__, __mul__ = partialmethod(binary, "ADD"), partialmethod(binary, "MUL")
    __truediv__, relu = partialmethod(binary, "DIV"), partialmethod(binary, "MAX", 0.0)

    def sum(self, *axes: int) -> Tensor:
        return self.make("SUM", axes)

    def __matmul__(self, other: Tensor) -> Tensor:
        """(n, k) @ (k, m): both seen as (n, m, k), multiplied, and summed over k."""
        (n, k), (_, m) = self.shape, other.shape
        rows = self.make("RESHAPE", (n, 1, k))
        columns = other.make("PERMUTE", (1, 0)).make("RESHAPE", (1, m, k))
        return (rows * columns).sum(2).make("RESHAPE", (n, m))


SHAPES = {"x": (8, 12), "w": (12, 16), "b": (16,)}
x, w, b = (Tensor(Node("INPUT", "float", (), item)) for item in SHAPES.items())
layer = (x @ w + b).relu()
shares = layer / layer.sum(1)  # each row as shares of its sum

# Small whole numbers: their sums are exact in any order, so results can be compared with `==`.
generator = np.random.default_rng(0)
DATA = {name: generator.integers(-3, 5, shape).astype(np.float32) for name, shape in SHAPES.items()}
DATA["b"] += 99
EXPECTED = evaluate(shares.node, DATA)
by_hand = np.maximum(DATA["x"] @ DATA["w"] + DATA["b"], 0)
assert np.array_equal(EXPECTED, by_hand / by_hand.sum(1, keepdims=True))

# ================================================================ 4. Rules
#
# A rule is data: a name, a pattern, a result, perhaps a condition; and a pattern is written in the language it matches.
# Nothing but the engine applies rules, and it counts each that fires. So a trace, or a bisection ('apply only the first
# n rewrites'), needs nothing from those who write rules.
#
# These rules are about indices. Floats would not forgive them: `x * 0` is NaN where x is infinite, and -0.0 + 0 is 0.
#
# In the package: tilewright/graph/pattern.py, tilewright/graph/rewrite.py; the rules are in tilewright/graph/simplify/.


class Rule(NamedTuple):
    name: str
    pattern: Node
    result: Callable[..., Node | int]  # of what the pattern's variables matched, by name
    condition: Callable[..., bool] = lambda **_: True


def match(pattern: Node, node: Node, found: dict[str, Node]) -> bool:
    """Whether the node has this form; `found` tells what each variable stands for. `c` and `d` stand for constants."""
    if pattern.op == "VARIABLE":
        fits = node.dtype == "index" and (pattern.arg not in "cd" or node.op == "CONST")
        return fits and found.setdefault(pattern.arg, node) is node
    is_same = (pattern.op, pattern.dtype, pattern.arg) == (node.op, node.dtype, node.arg)
    return is_same and all(match(part, src, found) for part, src in zip(pattern.src, node.src))


@functools.cache
def greatest(node: Node) -> int:
    """The greatest value of an index; the least is 0. Most conditions are questions about these bounds."""
    if node.op in ("CONST", "RANGE"):
        return node.arg if node.op == "CONST" else node.arg.size - 1
    left, right = map(greatest, node.src)
    return right - 1 if node.op == "MOD" else OPS[node.op].value(None, left, right)


i, j, c, d = (Node("VARIABLE", "index", (), name) for name in "ijcd")

INDEX_RULES = [
    Rule("add-zero", i + 0, lambda i: i),
    Rule("zero-add", number(0) + i, lambda i: i),
    Rule("mul-one", i * 1, lambda i: i),
    Rule("mul-zero", i * 0, lambda i: 0),
    Rule("div-one", i // 1, lambda i: i),
    Rule("div-of-less", i // c, lambda i, c: 0, lambda i, c: greatest(i) < c.arg),
    Rule("mod-of-less", i % c, lambda i, c: i, lambda i, c: greatest(i) < c.arg),
    Rule("div-of-multiple", (i * c + j) // c, lambda i, c, j: i, lambda i, c, j: greatest(j) < c.arg),
    Rule("mod-of-multiple", (i * c + j) % c, lambda i, c, j: j, lambda i, c, j: greatest(j) < c.arg),
    Rule("mod-one", i % 1, lambda i: 0),
    Rule("fold-mul", c * d, lambda c, d: c.arg * d.arg),
]


def rewrite(root: Node, rules: list[Rule], fired: Counter[str]) -> Node:
    """The graph in which no rule fires any more. A node is looked at once, after its sources."""
    done: dict[Node, Node] = {}
    for node in toposort(root):
        current = Node(node.op, node.dtype, tuple(done[src] for src in node.src), node.arg)
        for rule in rules:
            found: dict[str, Node] = {}
            if match(rule.pattern, current, found) and rule.condition(**found):
                fired[rule.name] += 1
                made = rule.result(**found)
                # What a rule made may be simplified in turn.
                current = rewrite(made if isinstance(made, Node) else number(made), rules, fired)
                break
        done[node] = current
    return done[root]


def make_range(name: str, size: int, kind: str) -> Node:
    return Node("RANGE", "index", (), Axis(name, size, kind))


row, column = make_range("row", 4, "loop"), make_range("column", 8, "loop")
assert rewrite((row * 8 + column) // 8 % 4, INDEX_RULES, Counter()) is row
assert rewrite((row * 8 + column) // 3, INDEX_RULES, Counter()) is (row * 8 + column) // 3, "a division that must stay"

# ================================================================ 5. Views are index functions
#
# Here a graph of whole arrays becomes arithmetic on single numbers. To write a kernel, ask for ONE element of its
# result, at an index of loop counters, and walk towards the inputs. Arithmetic hands the question on to its sources. A
# view changes the index and hands it on: it has now done all it will ever do, and costs nothing. A sum opens a loop.
#
# In the package: tilewright/schedule/fusion/indexing.py.


class KernelWriter:
    """Writes the value of one stored node as loads, arithmetic and reductions over loop counters."""

    def __init__(self, root: Node, stored: list[Node]) -> None:
        self.root = root
        self.stored = stored
        self.buffers = [root]
        self.axis_count = 0

    def axis(self, size: int, kind: str) -> Node:
        self.axis_count += 1
        return make_range(f"{kind[0]}{self.axis_count - 1}", size, kind)

    def address(self, node: Node, indices: Indices) -> Node:
        if node not in self.buffers:
            self.buffers.append(node)
        buffer = Node("PARAM", "pointer", (), self.buffers.index(node))
        return Node("INDEX", "pointer", (buffer, flatten(indices, node.shape)))

    def kernel(self) -> Node:
        indices = tuple(self.axis(size, "loop") for size in self.root.shape)
        return Node("STORE", "void", (self.address(self.root, indices), self.value(self.root, indices)))

    def value(self, node: Node, indices: Indices) -> Node:
        if node.op == "CONST":
            return node
        if node.op == "INPUT" or (node in self.stored and node is not self.root):
            return Node("LOAD", "float", (self.address(node, indices),))
        move = OPS[node.op].index
        if move is not None:
            return self.value(node.src[0], move(node, indices))
        if node.op == "SUM":
            loops = {axis: self.axis(node.src[0].shape[axis], "reduce") for axis in node.arg}
            inside = tuple(loops.get(axis, index) for axis, index in enumerate(indices))
            return Node("REDUCE", "float", (self.value(node.src[0], inside), *loops.values()))
        return Node(node.op, "float", tuple(self.value(src, indices) for src in node.src))


# ================================================================ 6. A schedule: what is stored, what is fused
#
# A value that is not stored is computed inside whoever uses it: that is all there is to fusion. So the only question is
# which values to store. We have one reason: the value holds a sum, and would be computed over again, because it has
# several users or because a view repeats it. (The real one weighs costs; softmax and layernorm are one kernel each.)
#
# In the package: tilewright/schedule/fusion/fuse.py decides, tilewright/schedule/steps/order.py orders the kernels.


class Kernel(NamedTuple):
    sink: Node  # a STORE
    buffers: tuple[Node, ...]  # the result first, then what is read


def nodes_to_store(output: Node) -> list[Node]:
    order = toposort(output)
    users = Counter(src for node in order for src in node.src)
    stored: list[Node] = []
    holding: set[Node] = set()  # nodes that would compute a sum
    for node in order:
        for src in node.src:
            if src in holding and src not in stored and (users[src] > 1 or node.op == "EXPAND"):
                stored.append(src)
        if node.op == "SUM" or any(src in holding and src not in stored for src in node.src):
            holding.add(node)
    return [*stored, output]


def schedule(output: Node, fired: Counter[str]) -> list[Kernel]:
    stored = nodes_to_store(output)
    writers = [KernelWriter(node, stored) for node in stored]
    return [Kernel(rewrite(writer.kernel(), INDEX_RULES, fired), tuple(writer.buffers)) for writer in writers]


FIRED: Counter[str] = Counter()
KERNELS = schedule(shares.node, FIRED)
assert len(KERNELS) == 3, "the layer with its bias and relu; the sum of each row, then the shares"
assert not {"IDIV", "MOD"} & {node.op for kernel in KERNELS for node in toposort(kernel.sink)}, "views left no division"

# ================================================================ 7. UPCAST: an axis becomes a tile
#
# Loops can be rearranged without touching what they compute. UPCAST splits a loop and makes its inner part a tile:
# elements that one iteration of the loop computes in registers, so that what is loaded once is used many times.
# A transform is two functions: one says why not, one does it. Asked for what is illegal, it refuses with the reason.
#
# In the package: tilewright/kernel/transforms/upcast.py; kernel/templates/choose.py chooses what is applied.


def check_upcast(loop: Node, amount: int) -> str | None:
    if loop.arg.kind != "loop":
        return f"{loop.arg.name} is a {loop.arg.kind} axis: its elements belong to one sum"
    return None if loop.arg.size % amount == 0 else f"{amount} does not divide {loop.arg.name}, of size {loop.arg.size}"


def apply_upcast(sink: Node, loop: Node, amount: int) -> Node:
    """
    before:  for l0 in 32:                        p0[l0] = ...          (amount=4)
    after:   for l0_0 in 8:  tile l0_1 of 4:      p0[l0_0*4 + l0_1] = ...
    """
    outer = make_range(f"{loop.arg.name}_0", loop.arg.size // amount, "loop")
    done = {loop: outer * amount + make_range(f"{loop.arg.name}_1", amount, "upcast")}
    for node in toposort(sink):
        if node not in done:
            done[node] = Node(node.op, node.dtype, tuple(done[src] for src in node.src), node.arg)
    return done[sink]


def optimise(sink: Node, amount: int) -> Node:
    """A tile along every output loop that the amount divides."""
    for loop in in_order(sink.ranges):
        if check_upcast(loop, amount) is None:
            sink = apply_upcast(sink, loop, amount)
    return sink


def in_order(axes: frozenset[Node], *, tiles: bool = False) -> tuple[Node, ...]:
    """The loops among the axes, or the tiles, outermost first."""
    found = (axis for axis in axes if (axis.arg.kind == "upcast") == tiles)
    return tuple(sorted(found, key=lambda axis: axis.arg.name))


assert "belong to one sum" in (check_upcast(make_range("r0", 8, "reduce"), 4) or "")
assert "does not divide" in (check_upcast(make_range("l0", 9, "loop"), 4) or "")

# ================================================================ 8. A program: nodes in order, inside their loops
#
# A value belongs in the outermost loop in which all it depends on is known. So, before a loop is opened, write whatever
# depends on open loops alone. Hoisting is no pass that moves code; it is the order in which code is first written.
#
# A tile opens no loop: a node that depends on an upcast axis is in the program once, however large the tile. Programs
# do not grow with unroll factors, and neither does the time to make them.
#
# In the package: tilewright/codegen/loops/linearise.py; tilewright/codegen/pipeline.py lists the passes before it.


class Lineariser:
    def __init__(self, sink: Node) -> None:
        self.body: list[Node] = []
        self.made: dict[Node, Node] = {}
        loops = in_order(sink.ranges)
        for depth, loop in enumerate(loops):
            self.write(sink, frozenset(loops[:depth]))
            self.body.append(loop)
        self.write(sink, frozenset(loops))
        self.body.extend(Node("END", "void", (loop,)) for loop in reversed(loops))

    def write(self, root: Node, opened: frozenset[Node]) -> None:
        for node in toposort(root):
            if node in self.made or not opened.issuperset(in_order(node.ranges)):
                continue
            if node.op == "REDUCE":
                self.made[node] = self.write_reduction(node, opened)
                continue
            self.made[node] = Node(node.op, node.dtype, tuple(self.made[src] for src in node.src), node.arg)
            if node.src:
                self.body.append(self.made[node])

    def write_reduction(self, node: Node, opened: frozenset[Node]) -> Node:
        """The one form a reduction takes: an accumulator set to 0, a loop that adds to it, a read of the total."""
        value, *loops = node.src
        accumulator = Node("ACC", "pointer", in_order(node.ranges, tiles=True), len(self.body))
        zero = Node("CONST", "float", (), 0.0)
        self.body += [accumulator, Node("STORE", "void", (accumulator, zero)), *loops]
        self.write(value, opened.union(loops))
        self.body.append(Node("ACCUMULATE", "void", (accumulator, self.made[value])))
        self.body += [Node("END", "void", (loop,)) for loop in reversed(loops)]
        self.body.append(Node("LOAD", "float", (accumulator,)))
        return self.body[-1]


PLAIN = [Lineariser(kernel.sink).body for kernel in KERNELS]
TILED = [Lineariser(optimise(kernel.sink, 4)).body for kernel in KERNELS]
assert len(TILED[0]) == len(Lineariser(optimise(KERNELS[0].sink, 8)).body), "a tile of 4x4 or of 8x8: as many nodes"

# ================================================================ 9. An emulator
#
# A program can be run as it stands, slowly and with no doubt about what it means; every device is compared with this.
# (The real one runs work-groups at once, and catches races, wild addresses and reads of memory that nobody wrote.)
#
# In the package: tilewright/backends/python/emulator.py.

Point = dict[Node, int]  # an element of a tile: a number for each of its axes


def points(node: Node) -> Iterator[Point]:
    """The elements of a value: one per point of the tile axes it depends on. Most values have only one."""
    tile = in_order(node.ranges, tiles=True)
    for numbers in itertools.product(*(range(axis.arg.size) for axis in tile)):
        yield dict(zip(tile, numbers))


def element(node: Node, point: Point) -> tuple[Node, ...]:
    """The name of one element: what a user's point says about the axes that this value has."""
    return node, *(point[axis] for axis in in_order(node.ranges, tiles=True))


def emulate(body: list[Node], buffers: list[np.ndarray]) -> None:
    values: dict[tuple[Node, ...], Any] = {}

    def get(node: Node, point: Point) -> Any:
        if node.op == "PARAM":
            return buffers[node.arg].reshape(-1)
        if node.op == "CONST":
            return np.float32(node.arg) if node.dtype == "float" else node.arg
        return point[node] if node in point else values[element(node, point)]

    def run(start: int, stop: int) -> None:
        while start < stop:
            node = body[start]
            if node.op == "RANGE":
                end = body.index(Node("END", "void", (node,)))
                for count in range(node.arg.size):
                    values[element(node, {})] = count
                    run(start + 1, end)
                start = end
            else:
                for point in points(node):
                    sources = [get(src, point) for src in node.src]
                    values[element(node, point)] = OPS[node.op].value(node.arg, *sources)
            start += 1

    run(0, len(body))


# ================================================================ 10. Text: here, and only here, tiles are expanded
#
# The renderer follows the emulator: where that one computes an element, this one writes a line. Accumulators are
# stack slots, which LLVM turns into registers. (The real renderer names registers itself, folds the constant offsets of
# a tile into its addresses, and writes an axis of stride 1 as vectors.)
#
# In the package: tilewright/backends/cpu/rendering/renderer.py, with tiles in tilewright/codegen/tiles.py.


LOOP_OPENS = """\
  br label %{name}.first
{name}.first:
  br label %{name}.loop
{name}.loop:
  %{name} = phi i64 [0, %{name}.first], [%{name}.next, %{name}.last]"""

LOOP_CLOSES = """\
  br label %{name}.last
{name}.last:
  %{name}.next = add i64 %{name}, 1
  %{name}.more = icmp ult i64 %{name}.next, {size}
  br i1 %{name}.more, label %{name}.loop, label %{name}.end
{name}.end:"""


class Renderer:
    def __init__(self, body: list[Node], buffer_count: int) -> None:
        self.slots: list[str] = []
        self.lines: list[str] = []
        self.names: dict[tuple[Node, ...], str] = {}
        for node in body:
            if node.op == "RANGE":
                self.lines.append(LOOP_OPENS.format(name=node.arg.name))
            elif node.op == "END":
                self.lines.append(LOOP_CLOSES.format(name=node.src[0].arg.name, size=node.src[0].arg.size))
            else:
                for point in points(node):
                    self.write(node, point)
        arguments = ", ".join(f"ptr noalias %p{slot}" for slot in range(buffer_count))
        head = ["declare float @llvm.maximum.f32(float, float)", f"define void @kernel({arguments}) {{"]
        self.text = "\n".join([*head, *self.slots, *self.lines, "  ret void", "}"])

    def get(self, node: Node, point: Point) -> str:
        if node.op == "PARAM":
            return f"%p{node.arg}"
        if node.op == "CONST":
            return "0x" + struct.pack(">d", node.arg).hex() if node.dtype == "float" else str(node.arg)
        if node.op == "RANGE":
            return str(point.get(node, f"%{node.arg.name}"))
        return self.names[element(node, point)]

    def write(self, node: Node, point: Point) -> None:
        """One element of a value: one line."""
        name = f"v{len(self.names)}"
        self.names[element(node, point)] = f"%{name}"
        if node.op == "ACC":
            self.slots.append(f"  %{name} = alloca float")
            return
        sources = [self.get(src, point) for src in node.src]
        letter, type_name = ("f", "float") if node.dtype == "float" else ("", "i64")
        text = OPS[node.op].text.format(*sources, id=name, f=letter, type=type_name)
        self.lines.append(f"  {text}" if node.dtype == "void" else f"  %{name} = {text}")


# ================================================================ 11. Machine code
#
# LLVM makes the text into instructions of this processor, inside this process, and ctypes calls them. (The real backend
# keeps the object on disk, so that the next process need not load LLVM, and runs kernels on all cores from a pool.)
#
# In the package: tilewright/backends/cpu/code/, tilewright/backends/cpu/pool/, tilewright/runtime/cache.py.


class NativeKernel:
    def __init__(self, text: str, buffer_count: int) -> None:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        module = llvm.parse_assembly(text)
        machine = llvm.Target.from_default_triple().create_target_machine(cpu=llvm.get_host_cpu_name(), opt=2)
        builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=2))
        builder.getModulePassManager().run(module, builder)
        self.assembly = machine.emit_assembly(module)
        self.engine = llvm.create_mcjit_compiler(module, machine)  # owns the code, so it has to stay
        self.engine.finalize_object()
        signature = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * buffer_count)
        self.call = signature(self.engine.get_function_address("kernel"))

    def run(self, buffers: list[np.ndarray]) -> None:
        self.call(*(buffer.ctypes.data for buffer in buffers))


# ================================================================ 12. The whole road
#
# In the package: tilewright/engine/compilation/compile.py and tilewright/engine/execution/realize.py join the stages,
# which do not know each other; tilewright/debug/explain.py shows what each made:
# `from tilewright.debug import explain; explain(t).print()`.


def realize(kernels: list[Kernel], launch: Callable[[int, list[np.ndarray]], None]) -> np.ndarray:
    """Runs the kernels in order, each into memory of its own."""
    memory: dict[Node, np.ndarray] = {}
    for position, kernel in enumerate(kernels):
        for node in kernel.buffers:
            if node not in memory:
                memory[node] = DATA[node.arg[0]] if node.op == "INPUT" else np.full(node.shape, math.nan, np.float32)
        launch(position, [memory[node] for node in kernel.buffers])
    return memory[kernels[-1].buffers[0]]


TEXTS = [Renderer(body, len(kernel.buffers)).text for body, kernel in zip(TILED, KERNELS)]
NATIVE = [NativeKernel(text, len(kernel.buffers)) for text, kernel in zip(TEXTS, KERNELS)]

# Four ways to one answer, equal to the last bit.
assert np.array_equal(EXPECTED, realize(KERNELS, lambda k, buffers: emulate(PLAIN[k], buffers))), "loops mean the graph"
assert np.array_equal(EXPECTED, realize(KERNELS, lambda k, buffers: emulate(TILED[k], buffers))), "tiles mean the loops"
assert np.array_equal(EXPECTED, realize(KERNELS, lambda k, buffers: NATIVE[k].run(buffers))), "the text means the tiles"

if __name__ == "__main__":
    print(f"the graph: {len(toposort(shares.node))} nodes; the schedule: {len(KERNELS)} kernels; rules that fired:")
    print("  " + ", ".join(f"{name} {count}" for name, count in FIRED.most_common()))
    for body, text, native in zip(TILED, TEXTS, NATIVE):
        lines = (len(body), len(text.splitlines()), len(native.assembly.splitlines()))
        print("a kernel: {} nodes, {} lines of LLVM IR, {} lines of assembly".format(*lines))
    print(f"graph, loops, tiles and machine code agree: the first row begins {EXPECTED[0, :4].round(4)}")
