"""A tour of Tilewright: a tensor compiler, rebuilt small enough to read at one sitting.

Nothing here imports the package. Each section builds one of its ideas in miniature, checks it on the spot with asserts, and
names the file where the real one lives. Run it: `python docs/tour.py`. It takes about a second and prints what it made.

The road we take, and the sections along it:

    x @ w + b        a graph        kernels        loops       tiles        a program     LLVM IR        numbers
    (3) tensors  ->  (1) nodes  ->  (6) schedule   (5) index   (7) upcast   (8) order     (10) text  ->  (11) run
                     (4) rules                         functions            (9) emulate
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import math
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import llvmlite.binding as llvm
import numpy as np

# ================================================================ 1. The node
#
# One type of node carries a program from the user's line to the machine. It has four fields, it never changes, and it is
# interned: the same four fields are the same object. So equality is identity, a graph is a DAG in which common
# subexpressions are common without any work, and whatever is worked out about a node can be kept for as long as it lives.
#
# In the package: tilewright/graph/uop.py


class Node:
    __slots__ = ("arg", "dtype", "op", "ranges", "shape", "src")
    table: dict[tuple[Any, ...], Node] = {}

    def __new__(cls, op: str, dtype: str, src: tuple[Node, ...] = (), arg: Any = None) -> Node:
        key = (op, dtype, src, type(arg), arg)
        node = cls.table.get(key)
        if node is None:
            node = cls.table[key] = object.__new__(cls)
            node.op, node.dtype, node.src, node.arg = op, dtype, src, arg
            node.shape = OPS[op].shape(node)
            node.ranges = ranges_of(node)
        return node

    def alu(self, op: str, other: Node | float) -> Node:
        right = other if isinstance(other, Node) else Node("CONST", self.dtype, (), other)
        return Node(op, self.dtype, (self, right))

    # Index maths and the patterns of rules are written with these, so both read as algebra.
    def __add__(self, other: Node | float) -> Node:
        return self.alu("ADD", other)

    def __mul__(self, other: Node | float) -> Node:
        return self.alu("MUL", other)

    def __floordiv__(self, other: Node | float) -> Node:
        return self.alu("IDIV", other)

    def __mod__(self, other: Node | float) -> Node:
        return self.alu("MOD", other)


def toposort(*roots: Node) -> list[Node]:
    """Every node below the roots, sources before their users."""
    order: dict[Node, None] = {}
    stack = [(root, False) for root in reversed(roots)]
    while stack:
        node, are_sources_done = stack.pop()
        if node in order:
            continue
        if are_sources_done:
            order[node] = None
        else:
            stack.append((node, True))
            stack.extend((src, False) for src in reversed(node.src))
    return list(order)


class Axis(NamedTuple):
    """What a RANGE counts over. Its kind is the role the axis plays: a `loop`, a `reduce` loop, or an `upcast` tile."""

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
# All that is known of an op stands in one place: how many sources, the shape of its result, its value (NumPy is the
# mathematics here), and, as the case may be, how it moves an index or which instruction it is. To add an op is to add a
# line; no stage has a list of its own to keep in step.
#
# In the package: tilewright/graph/ops.py, with the kinds of rules in tilewright/graph/spec.py

Shape = tuple[int, ...]
Indices = tuple[Node, ...]


class Spec(NamedTuple):
    shape: Callable[[Node], Shape]
    value: Callable[..., Any] | None = None  # (arg, *sources) -> array or number
    index: Callable[[Node, Indices], Indices] | None = None  # movement: which element of the source is this one?
    instruction: str = ""  # LLVM's word for it; with `{}` where floats and integers differ by a letter


def scalar(node: Node) -> Shape:
    return ()


def argument(node: Node) -> Shape:
    return node.arg


def elementwise(node: Node) -> Shape:
    shapes = {src.shape for src in node.src if src.shape}
    assert len(shapes) <= 1, f"{node.op} of shapes {shapes}: the tensor has to broadcast first"
    return next(iter(shapes), ())


def flatten(indices: Indices, shape: Shape) -> Node:
    """Where an element lies in memory, counted in elements: the last axis is contiguous."""
    position = number(0)
    for index, size in zip(indices, shape):
        position = position * size + index
    return position


def unflatten(position: Node, shape: Shape) -> Indices:
    found = []
    for size in reversed(shape):
        found.append(position % size)
        position = position // size
    return tuple(reversed(found))


def number(value: int) -> Node:
    return Node("CONST", "index", (), value)


OPS: dict[str, Spec] = {
    # leaves
    "CONST": Spec(scalar, lambda arg: arg),
    "INPUT": Spec(lambda node: node.arg[1]),  # arg: (name, shape)
    "RANGE": Spec(scalar),  # arg: Axis
    "PARAM": Spec(scalar),  # arg: the number of a kernel's buffer
    "VARIABLE": Spec(scalar),  # arg: the name a pattern gives to what it matched
    # arithmetic
    "ADD": Spec(elementwise, lambda _, x, y: x + y, None, "{}add"),
    "SUB": Spec(elementwise, lambda _, x, y: x - y, None, "{}sub"),
    "MUL": Spec(elementwise, lambda _, x, y: x * y, None, "{}mul"),
    "DIV": Spec(elementwise, lambda _, x, y: x / y, None, "{}div"),
    "MAX": Spec(elementwise, lambda _, x, y: np.maximum(x, y), None, "call float @llvm.maximum.f32"),
    "IDIV": Spec(elementwise, lambda _, x, y: x // y, None, "udiv"),  # of indices, which are never negative
    "MOD": Spec(elementwise, lambda _, x, y: x % y, None, "urem"),
    # movement
    "RESHAPE": Spec(
        argument,
        lambda arg, x: np.reshape(x, arg),
        lambda node, indices: unflatten(flatten(indices, node.shape), node.src[0].shape),
    ),
    "EXPAND": Spec(
        argument,
        lambda arg, x: np.broadcast_to(x, arg),
        lambda node, indices: tuple(number(0) if n == 1 else i for i, n in zip(indices, node.src[0].shape)),
    ),
    "PERMUTE": Spec(
        lambda node: tuple(node.src[0].shape[axis] for axis in node.arg),
        lambda arg, x: np.transpose(x, arg),
        lambda node, indices: tuple(indices[node.arg.index(axis)] for axis in range(len(indices))),
    ),
    # a sum along axes, which stay with size 1
    "SUM": Spec(
        lambda node: tuple(1 if axis in node.arg else n for axis, n in enumerate(node.src[0].shape)),
        lambda arg, x: x.sum(arg, keepdims=True),
    ),
    # kernels: (buffer, position), (buffer, position, value), (value, ranges...)
    "LOAD": Spec(scalar),
    "STORE": Spec(scalar),
    "REDUCE": Spec(scalar),
    # linear programs: an accumulator, adding to it, reading it, and the end of a loop
    "ACC": Spec(scalar),
    "ACCUMULATE": Spec(scalar),
    "READ": Spec(scalar),
    "END": Spec(scalar),
}

assert Node("CONST", "float", (), 2.0) is Node("CONST", "float", (), 2.0), "interned: equal is identical"
assert number(2) * 3 is number(2) * 3

# An interpreter comes free with the specs, and it is the definition: whatever we compile later has to equal this.
#
# In the package: tilewright/graph/evaluate.py


def evaluate(root: Node, inputs: dict[str, np.ndarray]) -> np.ndarray:
    values: dict[Node, Any] = {}
    for node in toposort(root):
        if node.op == "INPUT":
            values[node] = inputs[node.arg[0]]
        else:
            values[node] = OPS[node.op].value(node.arg, *(values[src] for src in node.src))
    return values[root]


# ================================================================ 3. Tensors are sentences in this language
#
# A tensor computes nothing. It holds a node, and its methods make bigger nodes. Even a matrix product is no op of its own:
# it is two views, a product and a sum, and what makes it fast is decided much later, where the facts are.
#
# In the package: tilewright/tensor/ (arithmetic in elementwise.py, views in shape.py, products in linalg.py)


class Tensor:
    def __init__(self, node: Node) -> None:
        self.node = node

    @staticmethod
    def input(name: str, *shape: int) -> Tensor:
        return Tensor(Node("INPUT", "float", (), (name, shape)))

    def move(self, op: str, arg: tuple[int, ...]) -> Tensor:
        return Tensor(Node(op, "float", (self.node,), arg))

    def broadcast_to(self, shape: Shape) -> Tensor:
        padded = (1,) * (len(shape) - len(self.node.shape)) + self.node.shape
        view = self if padded == self.node.shape else self.move("RESHAPE", padded)
        return view if padded == shape else view.move("EXPAND", shape)

    def binary(self, op: str, other: Tensor | float) -> Tensor:
        if not isinstance(other, Tensor):
            return Tensor(self.node.alu(op, float(other)))
        shape = np.broadcast_shapes(self.node.shape, other.node.shape)
        return Tensor(self.broadcast_to(shape).node.alu(op, other.broadcast_to(shape).node))

    def __add__(self, other: Tensor | float) -> Tensor:
        return self.binary("ADD", other)

    def __mul__(self, other: Tensor | float) -> Tensor:
        return self.binary("MUL", other)

    def __truediv__(self, other: Tensor | float) -> Tensor:
        return self.binary("DIV", other)

    def relu(self) -> Tensor:
        return self.binary("MAX", 0.0)

    def sum(self, *axes: int) -> Tensor:
        return self.move("SUM", axes)

    def __matmul__(self, other: Tensor) -> Tensor:
        """(n, k) @ (k, m): both as views of shape (n, m, k), multiplied, and summed over k."""
        (n, k), (_, m) = self.node.shape, other.node.shape
        rows = self.move("RESHAPE", (n, 1, k))
        columns = other.move("PERMUTE", (1, 0)).move("RESHAPE", (1, m, k))
        return (rows * columns).sum(2).move("RESHAPE", (n, m))


x, w, b = Tensor.input("x", 16, 24), Tensor.input("w", 24, 32), Tensor.input("b", 32)
layer = (x @ w + b).relu()
result = layer / layer.sum(1)  # each row as shares of its sum

# Small whole numbers, so that sums are exact in any order and results can be compared with `==`.
numbers = np.random.default_rng(0)
data = {name: numbers.integers(-3, 5, shape).astype(np.float32) for name, shape in [("x", (16, 24)), ("w", (24, 32))]}
data["b"] = numbers.integers(1, 9, 32).astype(np.float32)
expected = evaluate(result.node, data)
by_numpy = np.maximum(data["x"] @ data["w"] + data["b"], 0)
assert np.array_equal(expected, by_numpy / by_numpy.sum(1, keepdims=True))

# ================================================================ 4. Rules
#
# A rule is data: a name, a pattern, a result, perhaps a condition. Patterns are written in the language they match. Nothing
# but the engine applies rules, and it writes down each one that fires; so tracing, counting and bisecting ('apply only the
# first n rewrites') need nothing from those who write rules.
#
# The rules here are about indices. Floats would not forgive them: `x * 0` is NaN where x is infinite, `-0.0 + 0` is not -0.0.
#
# In the package: tilewright/graph/pattern.py, tilewright/graph/rewrite.py, and the rules in tilewright/graph/simplify/


class Rule(NamedTuple):
    name: str
    pattern: Node
    result: Callable[..., Node | int]  # gets what the pattern's variables matched, by name
    condition: Callable[..., bool] = lambda **_: True


def match(pattern: Node, node: Node, found: dict[str, Node]) -> bool:
    """Whether the node has the pattern's form; `found` says what each variable stands for. `c` and `d` are constants."""
    if pattern.op == "VARIABLE":
        is_wanted = pattern.dtype == node.dtype and (pattern.arg not in "cd" or node.op == "CONST")
        return is_wanted and found.setdefault(pattern.arg, node) is node
    same = (pattern.op, pattern.arg, len(pattern.src)) == (node.op, node.arg, len(node.src))
    return same and all(match(part, src, found) for part, src in zip(pattern.src, node.src))


@functools.cache
def bounds(node: Node) -> tuple[float, float]:
    """The least and greatest value an index can take; most conditions are questions about these."""
    if node.op == "CONST":
        return node.arg, node.arg
    if node.op == "RANGE":
        return 0, node.arg.size - 1
    if node.op == "LOAD":
        return -math.inf, math.inf
    (low, high), (other_low, other_high) = map(bounds, node.src)
    if node.op == "MOD":
        return 0, other_high - 1
    corners = [OPS[node.op].value(None, *pair) for pair in itertools.product((low, high), (other_low, other_high))]
    return min(corners), max(corners)


def is_below(node: Node, limit: Node) -> bool:
    return 0 <= bounds(node)[0] and bounds(node)[1] < limit.arg


i, j, c, d = (Node("VARIABLE", "index", (), name) for name in "ijcd")

INDEX_RULES = [
    Rule("add-zero", i + 0, lambda i: i),
    Rule("zero-add", number(0) + i, lambda i: i),
    Rule("mul-one", i * 1, lambda i: i),
    Rule("mul-zero", i * 0, lambda i: 0),
    Rule("div-one", i // 1, lambda i: i),
    Rule("mod-one", i % 1, lambda i: 0),
    Rule("div-of-less", i // c, lambda i, c: 0, lambda i, c: is_below(i, c)),
    Rule("mod-of-less", i % c, lambda i, c: i, lambda i, c: is_below(i, c)),
    Rule("div-of-multiple", (i * c + j) // c, lambda i, c, j: i, lambda i, c, j: is_below(j, c)),
    Rule("mod-of-multiple", (i * c + j) % c, lambda i, c, j: j, lambda i, c, j: is_below(j, c)),
    *(
        Rule(f"fold-{op.lower()}", c.alu(op, d), lambda c, d, op=op: OPS[op].value(None, c.arg, d.arg))
        for op in ("ADD", "MUL", "IDIV", "MOD")
    ),
]


def rewrite(root: Node, rules: list[Rule], fired: Counter[str]) -> Node:
    """The graph in which no rule fires any more. A node is looked at once, after its sources."""
    done: dict[Node, Node] = {}
    for node in toposort(root):
        current = Node(node.op, node.dtype, tuple(done[src] for src in node.src), node.arg)
        for rule in rules:
            found: dict[str, Node] = {}
            if match(rule.pattern, current, found) and rule.condition(**found):
                made = rule.result(**found)
                fired[rule.name] += 1
                # What a rule made may be simplified in turn.
                current = rewrite(made if isinstance(made, Node) else number(made), rules, fired)
                break
        done[node] = current
    return done[root]


def axis(name: str, size: int, kind: str) -> Node:
    return Node("RANGE", "index", (), Axis(name, size, kind))


row, column = axis("row", 4, "loop"), axis("column", 8, "loop")
assert rewrite((row * 8 + column) // 8 % 4, INDEX_RULES, Counter()) is row
assert rewrite((row * 8 + column) // 3, INDEX_RULES, Counter()) is not row, "3 does not divide 8: a division has to stay"

# ================================================================ 5. Views are index functions
#
# This is where a graph of whole arrays becomes arithmetic on single elements. To write a kernel we ask for ONE element of the
# result, at an index of loop counters, and walk towards the inputs. Arithmetic hands the question on to its sources. A view
# changes the index and hands it on; it has now done all it will ever do, and costs nothing. A sum opens a loop of its own.
#
# In the package: tilewright/schedule/indexing.py


class KernelWriter:
    """Writes the value of one stored node, as loads, arithmetic and reductions over loop counters."""

    def __init__(self, root: Node, stored: list[Node]) -> None:
        self.root = root
        self.stored = stored
        self.buffers = [root]
        self.counter = itertools.count()

    def axis(self, size: int, kind: str) -> Node:
        return axis(f"{kind[0]}{next(self.counter)}", size, kind)

    def buffer(self, node: Node) -> Node:
        if node not in self.buffers:
            self.buffers.append(node)
        return Node("PARAM", "pointer", (), self.buffers.index(node))

    def kernel(self) -> Node:
        indices = tuple(self.axis(size, "loop") for size in self.root.shape)
        value = self.value(self.root, indices)
        return Node("STORE", "void", (self.buffer(self.root), flatten(indices, self.root.shape), value))

    @functools.cache  # noqa: B019 - a writer lives as long as its kernel is written
    def value(self, node: Node, indices: Indices) -> Node:
        if node.op == "CONST":
            return node
        if node.op == "INPUT" or (node in self.stored and node is not self.root):
            return Node("LOAD", "float", (self.buffer(node), flatten(indices, node.shape)))
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
# A value that is not stored is computed inside whoever uses it: that is all there is to fusion. So the scheduler asks of each
# value only whether it must be stored. Ours has one reason: it holds a sum, and would be computed over again, because it
# has several users or because a view repeats it. (The real one weighs costs, and keeps a softmax in one kernel.)
#
# In the package: tilewright/schedule/fuse.py decides, tilewright/schedule/order.py puts kernels in an order


class Kernel(NamedTuple):
    store: Node
    buffers: tuple[Node, ...]  # the result first, then what is read


def nodes_to_store(output: Node) -> list[Node]:
    order = toposort(output)
    users = Counter(src for node in order for src in node.src)
    stored: list[Node] = []
    holds_sum: set[Node] = set()
    for node in order:
        for src in node.src:
            is_repeated = users[src] > 1 or node.op == "EXPAND"
            if src in holds_sum and src not in stored and is_repeated:
                stored.append(src)
        if node.op == "SUM" or any(src in holds_sum and src not in stored for src in node.src):
            holds_sum.add(node)
    return [*stored, output]


def schedule(output: Node, fired: Counter[str]) -> list[Kernel]:
    stored = nodes_to_store(output)
    kernels = []
    for node in stored:
        writer = KernelWriter(node, stored)
        kernels.append(Kernel(rewrite(writer.kernel(), INDEX_RULES, fired), tuple(writer.buffers)))
    return kernels


rules_fired: Counter[str] = Counter()
kernels = schedule(result.node, rules_fired)
assert [kernel.buffers[0].op for kernel in kernels] == ["MAX", "SUM", "DIV"], "the layer; the sums of its rows; the shares"
assert not {"IDIV", "MOD"} & {node.op for kernel in kernels for node in toposort(kernel.store)}, "no view left a division"

# ================================================================ 7. UPCAST: an axis becomes a tile
#
# A kernel's loops can be rearranged without touching what it computes. UPCAST splits a loop and makes its inner part a tile:
# elements that one pass of the loop computes side by side, in registers, so that what is loaded once is used many times.
# Every transform is two functions: one that says why not, one that does it. The second never produces a wrong kernel.
#
# In the package: tilewright/kernel/transforms/upcast.py; tilewright/kernel/heuristic.py chooses, tilewright/kernel/optimise.py applies


def check_upcast(axis: Node, amount: int) -> str | None:
    if axis.arg.kind != "loop":
        return f"{axis.arg.name} is a {axis.arg.kind} axis: its elements are one accumulator's, not several results"
    return None if axis.arg.size % amount == 0 else f"{amount} does not divide {axis.arg.name}, of size {axis.arg.size}"


def apply_upcast(store: Node, loop: Node, amount: int) -> Node:
    """
    before: for i in 32:                 p0[i] = ...        (amount=4)
    after:  for i_0 in 8: tile i_1 of 4: p0[i_0*4 + i_1] = ...
    """
    outer = axis(f"{loop.arg.name}_0", loop.arg.size // amount, loop.arg.kind)
    inner = axis(f"{loop.arg.name}_1", amount, "upcast")
    done = {loop: outer * amount + inner}
    for node in toposort(store):
        if node not in done:
            done[node] = Node(node.op, node.dtype, tuple(done[src] for src in node.src), node.arg)
    return done[store]


def optimise(store: Node, amount: int = 4) -> Node:
    """Tiles as square as they come: every output loop that the amount divides."""
    for loop in sorted(store.ranges, key=lambda node: node.arg.name):
        if check_upcast(loop, amount) is None:
            store = apply_upcast(store, loop, amount)
    return store


assert "reduce axis" in (check_upcast(axis("r0", 8, "reduce"), 4) or "")
assert "does not divide" in (check_upcast(axis("l0", 9, "loop"), 4) or "")

# ================================================================ 8. A program: nodes in order, inside their loops
#
# A value belongs in the outermost loop in which all it depends on is known. So: before a loop is opened, write everything that
# depends on open loops alone. Hoisting is not a pass that moves code; it is the order in which code is first written.
#
# Tiles do not appear. An upcast axis opens no loop, and a node that depends on it is in the program once, however large the
# tile: the program does not grow with the unroll factor, and neither does the time to make it.
#
# In the package: tilewright/codegen/linearise.py; tilewright/codegen/pipeline.py lists the passes around it


def linearise(store: Node) -> list[Node]:
    body: list[Node] = []
    made: dict[Node, Node] = {}

    def loops_of(node: Node) -> set[Node]:
        return {axis for axis in node.ranges if axis.arg.kind != "upcast"}

    def write(root: Node, is_open: set[Node]) -> None:
        for node in toposort(root):
            if node in made or not loops_of(node) <= is_open:
                continue
            if node.op == "REDUCE":
                made[node] = write_reduction(node, is_open)
            else:
                made[node] = Node(node.op, node.dtype, tuple(made[src] for src in node.src), node.arg)
                if node.op not in ("CONST", "PARAM", "RANGE"):
                    body.append(made[node])

    def write_reduction(node: Node, is_open: set[Node]) -> Node:
        value, *loops = node.src
        tile = tuple(sorted((axis for axis in value.ranges if axis.arg.kind == "upcast"), key=lambda n: n.arg.name))
        accumulator = Node("ACC", "float", tile, sum(node.op == "ACC" for node in body))
        body.append(accumulator)
        body.extend(loops)
        write(value, is_open | set(loops))
        body.append(Node("ACCUMULATE", "void", (accumulator, made[value])))
        body.extend(Node("END", "void", (loop,)) for loop in reversed(loops))
        body.append(Node("READ", "float", (accumulator,)))
        return body[-1]

    loops = sorted(loops_of(store), key=lambda node: node.arg.name)
    for depth, loop in enumerate(loops):
        write(store, set(loops[:depth]))
        body.append(loop)
    write(store, set(loops))
    return body + [Node("END", "void", (loop,)) for loop in reversed(loops)]


def tile_of(node: Node) -> tuple[Node, ...]:
    """The tile of a value: the upcast axes it depends on. A value that depends on none is computed once."""
    return tuple(sorted((axis for axis in node.ranges if axis.arg.kind == "upcast"), key=lambda axis: axis.arg.name))


Point = dict[Node, int]  # an element of a tile: a number for each of its axes


def points(node: Node) -> Iterator[Point]:
    tile = tile_of(node)
    for numbers in itertools.product(*(range(axis.arg.size) for axis in tile)):
        yield dict(zip(tile, numbers))


def element(node: Node, point: Point) -> tuple[Node, tuple[int, ...]]:
    """Names one element of a value: what the user's point says about the axes that this value has."""
    return node, tuple(point[axis] for axis in tile_of(node))


programs = [linearise(optimise(kernel.store)) for kernel in kernels]
assert len(programs[0]) == len(linearise(optimise(kernels[0].store, amount=8))), "4x4 and 8x8: as many nodes"

# ================================================================ 9. An emulator
#
# A linear program can be run as it stands, slowly and with no doubt about what it means. Every device is compared with this.
# (The real one runs whole work-groups at once, and catches races, wild addresses and reads of memory that nobody wrote.)
#
# In the package: tilewright/backends/python/emulator.py


def emulate(body: list[Node], buffers: list[np.ndarray]) -> None:
    memory = [buffer.reshape(-1) for buffer in buffers]
    values: dict[tuple[Node, tuple[int, ...]], Any] = {}

    def get(node: Node, point: Point) -> Any:
        if node.op == "CONST":
            return np.float32(node.arg) if node.dtype == "float" else node.arg
        if node.op == "RANGE" and node in point:
            return point[node]
        return values[element(node, point)]

    def step(node: Node, point: Point) -> None:
        if node.op == "ACC":
            values[element(node, point)] = np.float32(0)
        elif node.op == "ACCUMULATE":
            values[element(node.src[0], point)] += get(node.src[1], point)
        elif node.op == "STORE":
            memory[node.src[0].arg][get(node.src[1], point)] = get(node.src[2], point)
        elif node.op == "LOAD":
            values[element(node, point)] = memory[node.src[0].arg][get(node.src[1], point)]
        elif node.op == "READ":
            values[element(node, point)] = get(node.src[0], point)
        else:
            values[element(node, point)] = OPS[node.op].value(node.arg, *(get(src, point) for src in node.src))

    def run(start: int, stop: int) -> None:
        while start < stop:
            node = body[start]
            if node.op == "RANGE":
                end = body.index(Node("END", "void", (node,)))
                for value in range(node.arg.size):
                    values[element(node, {})] = value
                    run(start + 1, end)
                start = end
            else:
                for point in points(node):
                    step(node, point)
            start += 1

    run(0, len(body))


# ================================================================ 10. Text: the tile is written out here, and only here
#
# The renderer is the emulator with a pen. Where that one computes a value for each element of its tile, this one writes a line
# for each. Loop counters and accumulators are stack slots, which LLVM turns into registers. (The real renderer writes phi
# nodes, puts a tile's constant offsets into the address, and writes an axis of stride 1 as vectors.)
#
# In the package: tilewright/backends/cpu/renderer.py, tiles in tilewright/backends/cpu/tiles.py

TYPES = {"float": "float", "index": "i64"}


def render(body: list[Node], buffer_count: int) -> str:
    slots: list[str] = []
    lines: list[str] = []
    names: dict[tuple[Node, tuple[int, ...]], str] = {}

    def get(node: Node, point: Point) -> str:
        if node.op == "CONST" and node.dtype == "float":
            return "0x" + struct.pack(">d", node.arg).hex()
        if node.op in ("CONST", "PARAM"):
            return f"%p{node.arg}" if node.op == "PARAM" else str(node.arg)
        return str(point[node]) if node.op == "RANGE" and node in point else names[element(node, point)]

    def define(text: str) -> str:
        lines.append(f"  %v{len(lines)} = {text}")
        return f"%v{len(lines) - 1}"

    def slot(kind: str) -> str:
        slots.append(f"  %slot{len(slots)} = alloca {kind}")
        return f"%slot{len(slots) - 1}"

    def open_loop(node: Node) -> None:
        name, counter = node.arg.name, slot("i64")
        lines.extend((f"  store i64 0, ptr {counter}", f"  br label %{name}", f"{name}:"))
        names[element(node, {})] = define(f"load i64, ptr {counter}")
        ends[node] = counter

    def close_loop(node: Node) -> None:
        name, size = node.arg.name, node.arg.size
        following = define(f"add i64 {get(node, {})}, 1")
        lines.append(f"  store i64 {following}, ptr {ends[node]}")
        again = define(f"icmp ult i64 {following}, {size}")
        lines.extend((f"  br i1 {again}, label %{name}, label %{name}_end", f"{name}_end:"))

    def write(node: Node, point: Point) -> str:
        src = [get(part, point) for part in node.src if part.op != "RANGE" or node.op != "ACC"]
        if node.op == "ACC":
            made = slot("float")
            lines.append(f"  store float 0.0, ptr {made}")
        elif node.op == "ACCUMULATE":
            total = define(f"fadd float {define(f'load float, ptr {src[0]}')}, {src[1]}")
            lines.append(f"  store float {total}, ptr {src[0]}")
            made = total
        elif node.op == "READ":
            made = define(f"load float, ptr {src[0]}")
        elif node.op in ("LOAD", "STORE"):
            address = define(f"getelementptr float, ptr {src[0]}, i64 {src[1]}")
            if node.op == "LOAD":
                return define(f"load float, ptr {address}")
            lines.append(f"  store float {src[2]}, ptr {address}")
            made = address
        elif node.op == "MAX":
            made = define(f"{OPS[node.op].instruction}(float {src[0]}, float {src[1]})")
        else:
            instruction = OPS[node.op].instruction.format("f" if node.dtype == "float" else "")
            made = define(f"{instruction} {TYPES[node.dtype]} {src[0]}, {src[1]}")
        return made

    ends: dict[Node, str] = {}
    for node in body:
        if node.op == "RANGE":
            open_loop(node)
        elif node.op == "END":
            close_loop(node.src[0])
        else:
            for point in points(node):
                names[element(node, point)] = write(node, point)
    arguments = ", ".join(f"ptr noalias %p{slot}" for slot in range(buffer_count))
    return "\n".join(
        ("declare float @llvm.maximum.f32(float, float)", f"define void @kernel({arguments}) {{", *slots, *lines, "  ret void\n}")
    )


# ================================================================ 11. Machine code
#
# LLVM turns the text into instructions of this processor, in this process; ctypes calls them. The package does the same, without
# the stack slots, and keeps the object on disk so that the next process need not load LLVM at all.
#
# In the package: tilewright/backends/cpu/llvm.py, tilewright/engine/compile.py, tilewright/runtime/cache.py


class NativeKernel:
    def __init__(self, text: str, buffer_count: int) -> None:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        module = llvm.parse_assembly(text)
        machine = llvm.Target.from_default_triple().create_target_machine(cpu=llvm.get_host_cpu_name(), opt=2)
        tuning = llvm.create_pipeline_tuning_options(speed_level=2)
        builder = llvm.create_pass_builder(machine, tuning)
        builder.getModulePassManager().run(module, builder)
        self.assembly = machine.emit_assembly(module)
        self.engine = llvm.create_mcjit_compiler(module, machine)
        self.engine.finalize_object()
        signature = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * buffer_count)
        self.call = signature(self.engine.get_function_address("kernel"))

    def run(self, buffers: list[np.ndarray]) -> None:
        self.call(*(buffer.ctypes.data for buffer in buffers))


# ================================================================ 12. The whole road
#
# In the package: tilewright/engine/realize.py


def realize(kernels: Iterable[Kernel], run: Callable[[int, list[np.ndarray]], None]) -> np.ndarray:
    """Runs the kernels in order, each into memory of its own. What is handed in decides on which device."""
    memory: dict[Node, np.ndarray] = {}
    for position, kernel in enumerate(kernels):
        for node in kernel.buffers:
            if node not in memory:
                is_input = node.op == "INPUT"
                memory[node] = data[node.arg[0]] if is_input else np.full(node.shape, np.nan, np.float32)
        run(position, [memory[node] for node in kernel.buffers])
    return memory[kernel.buffers[0]]


texts = [render(program, len(kernel.buffers)) for program, kernel in zip(programs, kernels)]
compiled = [NativeKernel(text, len(kernel.buffers)) for text, kernel in zip(texts, kernels)]
plain = [linearise(kernel.store) for kernel in kernels]

assert np.array_equal(realize(kernels, lambda k, buffers: emulate(plain[k], buffers)), expected), "loops mean the graph"
assert np.array_equal(realize(kernels, lambda k, buffers: emulate(programs[k], buffers)), expected), "tiles mean the loops"
assert np.array_equal(realize(kernels, lambda k, buffers: compiled[k].run(buffers)), expected), "machine code means the tiles"


if __name__ == "__main__":
    print(f"{len(toposort(result.node))} tensor nodes became {len(kernels)} kernels")
