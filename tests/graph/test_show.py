"""The text forms: what `show` writes `parse` reads back as the same object, and nothing else gets past `parse`."""

from __future__ import annotations

import math
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright import Tensor, Variable
from tilewright.base.dtype import DType, cast_scalar, dtypes
from tilewright.base.errors import InternalError, ParseError
from tilewright.base.target import Target
from tilewright.graph.ops import ALL_OPS, REDUCTIONS, AddrSpace, Axis, AxisType, BufferArg, Ops, ParamArg
from tilewright.graph.records import KernelInfo, Opt, OptOps, Param, Program
from tilewright.graph.spec import Kind
from tilewright.graph.text.arguments import literal
from tilewright.graph.text.parse import parse
from tilewright.graph.text.show import show, show_expression, show_program
from tilewright.graph.uop import UOp, const, index_const
from tilewright.graph.walk import toposort

ROOT = Path(__file__).resolve().parents[2]
F32 = dtypes.float32


def loop(number: int, size: int, kind: AxisType = AxisType.LOOP) -> UOp:
    return UOp(Ops.RANGE, dtypes.index, (index_const(size),), Axis((number,), kind))


def param(slot: int, size: int = 16) -> UOp:
    return UOp(Ops.PARAM, F32, (), ParamArg(slot, size))


def load(source: UOp, index: UOp, *valid: UOp) -> UOp:
    return UOp(Ops.LOAD, F32, (UOp(Ops.INDEX, F32, (source, index, *valid)),))


def row_sums() -> UOp:
    i, j = loop(0, 4, AxisType.GLOBAL), loop(1, 4, AxisType.REDUCE)
    total = UOp(Ops.REDUCE, F32, (load(param(1), i * 4 + j, j < 3), j), Ops.ADD)
    place = UOp(Ops.INDEX, F32, (param(0, 4), i))
    info = KernelInfo("row_sums", (Opt(OptOps.UPCAST, 0, 4), Opt(OptOps.NOLOCALS), Opt(OptOps.TC, 0, (-1, 2))))
    return UOp(Ops.SINK, dtypes.void, (UOp(Ops.STORE, dtypes.void, (place, total)),), info)


# ---------------------------------------------------------------- show and parse


def test_the_text_of_a_kernel() -> None:
    assert (
        show(row_sums())
        == """\
%0 = PARAM float32 ParamArg(0, 4, "")  # (4,)
%1 = CONST index 4
%2 = RANGE index %1 Axis((0,), AxisType.GLOBAL)
%3 = INDEX float32 %0 %2
%4 = PARAM float32 ParamArg(1, 16, "")  # (16,)
%5 = MUL index %2 %1
%6 = RANGE index %1 Axis((1,), AxisType.REDUCE)
%7 = ADD index %5 %6
%8 = CONST index 3
%9 = CMPLT bool %6 %8
%10 = INDEX float32 %4 %7 %9
%11 = LOAD float32 %10
%12 = REDUCE float32 %11 %6 Ops.ADD
%13 = STORE void %3 %12
%14 = SINK void %13 KernelInfo("row_sums", (Opt(OptOps.UPCAST, 0, 4), Opt(OptOps.NOLOCALS, None, None), \
Opt(OptOps.TC, 0, (-1, 2))), ())
"""
    )
    assert parse(show(row_sums())) is row_sums()


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        (dtypes.float64, -0.0),
        (dtypes.float64, 0.0),
        (dtypes.float64, math.nan),
        (dtypes.float64, math.inf),
        (dtypes.float32, -math.inf),
        (dtypes.float64, 5e-324),
        (dtypes.float64, 1.7976931348623157e308),
        (dtypes.float64, 0.1),
        (dtypes.float64, 1e16),
        (dtypes.float32, 1.0),
        (dtypes.int32, 1),
        (dtypes.bool, True),
        (dtypes.uint64, (1 << 64) - 1),
        (dtypes.index, -(1 << 100)),
        (dtypes.index, 1 << 1000),
    ],
)
def test_constants_come_back_in_value_and_type(dtype: DType, value: Any) -> None:
    node = const(dtype, value)
    found = parse(show(node))
    assert found is node
    assert repr(found.arg) == repr(value)


@pytest.mark.parametrize(
    "argument",
    [
        None,
        (),
        (1,),
        (1, (2, (3, ()))),
        ('quote " and \\ and # and \n and é and \u2028', "%3 = ADD"),
        (Ops.ADD, (0, 1)),
        AxisType.UPCAST,
        AddrSpace.LOCAL,
        dtypes.bfloat16,
        BufferArg(3, 4, "CPU:1"),
        KernelInfo("k", None),
        KernelInfo("k", ()),
        Opt(OptOps.PADTO, 1, 32),
        (True, 1.5, -2, None, False, -math.inf),
    ],
    ids=repr,
)
def test_arguments_come_back_in_value_and_type(argument: Any) -> None:
    node = UOp(Ops.CONTIGUOUS, F32, (param(0),), argument)
    found = parse(show(node), check=False)
    assert found is node
    # The node is alive, so interning alone would give it back; a reading of the text itself must agree.
    fresh = parse(show(node).replace("CONTIGUOUS", "DETACH"), check=False)
    assert repr(fresh.arg) == repr(argument)
    assert type(fresh.arg) is type(argument)


def test_an_argument_without_text_is_our_error() -> None:
    with pytest.raises(InternalError, match="frozenset has no text form"):
        show(UOp(Ops.CONTIGUOUS, F32, (param(0),), frozenset()))
    with pytest.raises(InternalError, match="too large an integer"):
        show(UOp(Ops.CONTIGUOUS, F32, (param(0),), 1 << 5000))


def test_equal_graphs_give_equal_text_in_every_process() -> None:
    program = (
        "import sys; from tilewright.graph.text.parse import parse; from tilewright.graph.text.show import show;"
        "text = sys.stdin.read(); assert show(parse(text)) == text; print('same')"
    )
    command = [sys.executable, "-c", program]
    finished = subprocess.run(command, input=show(row_sums()), cwd=ROOT, capture_output=True, text=True, check=False)
    assert finished.stdout == "same\n", finished.stderr


def test_a_broken_graph_can_be_shown_and_read_unchecked() -> None:
    broken = UOp(Ops.PERMUTE, F32, (param(0),), (0, 5))
    text = show(UOp(Ops.NEG, F32, (broken,)))
    assert "# no shape" in text
    assert parse(text, check=False).src[0] is broken
    with pytest.raises(ParseError, match="order of 1 axes"):
        parse(text)


def test_symbolic_sizes_come_back() -> None:
    node = (Tensor([1.0, 2.0, 3.0])[: Variable("n", 1, 3).bind(2)] + 1).uop
    assert "SymbolicInt(" in show(node)
    assert parse(show(node)) is node


def test_deep_graphs_come_back() -> None:
    node = param(0)
    for _ in range(5_000):
        node = node + 1.0
    assert parse(show(node)) is node


# ---------------------------------------------------------------- random graphs

SCALARS = (dtypes.bool, dtypes.int8, dtypes.uint64, dtypes.float16, dtypes.float32, dtypes.float64)
BINARY = tuple(op for op in ALL_OPS if op.kind is Kind.BINARY)
UNARY = (Ops.NEG, Ops.SQRT, Ops.EXP2, Ops.TRUNC)
# What a quoted text may hold; to draw from all of Unicode, hypothesis first looks at each of its characters.
TEXTS = st.text("aZ0 %#=,()'\"\\\n\r\t\x00é\u2028漢😀", max_size=6)


@st.composite
def graphs(draw: st.DrawFn) -> UOp:
    """A tensor graph that keeps the rules, grown node by node from what is there already."""
    count = draw(st.integers(0, 3))
    nodes = [UOp(Ops.BUFFER, F32, (), BufferArg(uid, 6, draw(TEXTS))) for uid in range(count)]
    for _ in range(draw(st.integers(1, 3))):
        dtype = draw(st.sampled_from(SCALARS))
        nodes.append(const(dtype, draw(st.floats() | st.integers() | st.booleans())))
    for _ in range(draw(st.integers(0, 12))):
        grow = draw(st.sampled_from((_grow_elementwise, _grow_movement, _grow_cast, _grow_reduce)))
        node = grow(draw, draw(st.sampled_from(nodes)), nodes)
        if node is not None:
            nodes.append(node)
    return nodes[-1]


def _grow_elementwise(draw: st.DrawFn, x: UOp, nodes: list[UOp]) -> UOp | None:
    partners = [node for node in nodes if node.dtype is x.dtype and node.shape in ((), x.shape)]
    if x.dtype.is_float and draw(st.booleans()):
        return x.alu(draw(st.sampled_from(UNARY)))
    op = draw(st.sampled_from((Ops.ADD, Ops.SUB, Ops.MUL, Ops.MAX, Ops.CMPLT, Ops.CMPEQ, Ops.WHERE)))
    other = draw(st.sampled_from(partners))
    if op is Ops.WHERE:
        return UOp(Ops.WHERE, x.dtype, (x.ne(other), other, x))
    return x.alu(op, other)


def _grow_movement(draw: st.DrawFn, x: UOp, _nodes: list[UOp]) -> UOp | None:
    rank = len(x.shape)
    op = draw(st.sampled_from((Ops.RESHAPE, Ops.PERMUTE, Ops.PAD, Ops.SHRINK, Ops.FLIP, Ops.EXPAND)))
    if rank > 4 or math.prod(x.shape) > 10_000:
        return None
    arguments: dict[Any, Any] = {
        Ops.RESHAPE: (1, *x.shape),
        Ops.PERMUTE: tuple(draw(st.permutations(range(rank)))),
        Ops.PAD: tuple((draw(st.integers(0, 2)), draw(st.integers(0, 2))) for _ in x.shape),
        Ops.SHRINK: tuple((draw(st.integers(0, size)), size) for size in x.shape),
        Ops.FLIP: tuple(axis for axis in range(rank) if draw(st.booleans())),
        Ops.EXPAND: tuple(draw(st.integers(0, 3)) if size == 1 else size for size in x.shape),
    }
    return UOp(op, x.dtype, (x,), arguments[op])


def _grow_cast(draw: st.DrawFn, x: UOp, _nodes: list[UOp]) -> UOp | None:
    return x.cast(draw(st.sampled_from(SCALARS)))


def _grow_reduce(draw: st.DrawFn, x: UOp, _nodes: list[UOp]) -> UOp | None:
    axes = tuple(axis for axis in range(len(x.shape)) if draw(st.booleans()))
    by_name = sorted(REDUCTIONS, key=lambda op: op.name)
    return UOp(Ops.REDUCE_AXIS, x.dtype, (x,), (draw(st.sampled_from(by_name)), axes))


@settings(max_examples=100, deadline=None)
@given(graphs())
def test_random_graphs_come_back(root: UOp) -> None:
    text = show(root)
    assert parse(text) is root
    assert len(text.splitlines()) == len(toposort(root))


# ---------------------------------------------------------------- malformed text


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("", 1, "holds no node"),
        ("# nothing\n\n", 3, "holds no node"),
        ("%0 = CONST int32 (", 1, "no argument can start here"),
        ("%0 = CONST int32 1\n%1 = FOO int32 %0", 2, "no op is called 'FOO'"),
        ("%0 = CONST int33 1", 1, "no dtype is called 'int33'"),
        ("%0 = CONST int32 1\n%0 = CONST int32 2", 2, "%0 is written twice"),
        ("%1 = NEG int32 %0", 1, "%0 is not written above"),
        ("%0 = CONST int32 1 2", 1, "goes on after the argument"),
        ("%0 = CONST int32 (1)", 1, "written `(item,)`"),
        ("%0 = CONST int32 [1]", 1, "'[' starts nothing"),
        ('%0 = CONST int32 "abc', 1, "starts nothing"),
        ('%0 = COPY int32 "\\q"', 1, "not a JSON string"),
        ("%0 CONST int32 1", 1, "'CONST' stands where '=' must"),
        ("%0 = CONST int32 __import__", 1, "not an argument that a node can have"),
        ("%0 = CONST int32 Ops.FOO", 1, "not an argument"),
        ("%0 = CONST int32 True", 1, "holds int"),
        ("%0 = CONST float32 1", 1, "holds float"),
        ("%0 = CONST uint8 256", 1, "holds it as 0"),
        ("%0 = CONST int32 1\n%1 = ADD int32 %0", 2, "takes 2"),
        ("%0 = CONST int32 1\n%1 = NEG float32 %0", 2, "give int32"),
        ("%0 = PARAM int32 (0, 4, \"\")", 1, "not a ParamArg"),
        ("%0 = PARAM int32 ParamArg(0, 4)", 1, "where ',' must"),
        ("%0 = PARAM int32 ParamArg(0, True, \"\")", 1, "ParamArg.size cannot be True"),
        ("%0 = SINK void KernelInfo(3, None, ())", 1, "KernelInfo.name cannot be 3"),
        ("%0 = SINK void KernelInfo(\"k\", (3,), ())", 1, "opts_to_apply cannot be (3,)"),
        ("%0 = CONST int32 " + "(" * 5000, 1, "nested too deeply"),
        ("%0 = CONST index " + "9" * 500, 1, "too large"),
        ("%0 = CONST index " + "9" * 5000, 1, "too large"),
        ("%0 = IOTA int32 (3,)\n%1 = RESHAPE int32 %0 (" + f"{10**300}, " * 40 + ")", 2, "has more than 64 bits count"),
        ("%0 = CONST int32 1 # fine\r\n%1 = NEG int32 %0 %0", 2, "takes 1"),
    ],
)  # fmt: skip
def test_malformed_text_is_refused_with_line_and_reason(text: str, line: int, reason: str) -> None:
    with pytest.raises(ParseError) as caught:
        parse(text)
    assert reason in caught.value.message
    assert text.count("\n", 0, caught.value.position) + 1 == line
    if text:
        assert f"line {line}: " in str(caught.value)


def mutate(text: str, generator: random.Random) -> str:
    """The text with a few small things gone, doubled, exchanged or put in from elsewhere."""
    pieces = list(text)
    words = text.split()
    for _ in range(generator.randint(1, 3)):
        place = generator.randrange(len(pieces))
        kind = generator.randrange(6)
        if kind == 0:
            del pieces[place]
        elif kind == 1:
            pieces[place] = generator.choice('%0123456789().,-=eE"\\#xnai \n\r\t\0é\u0663')
        elif kind == 2:
            pieces.insert(place, generator.choice(words))
        elif kind == 3:
            other = generator.randrange(len(pieces))
            pieces[place], pieces[other] = pieces[other], pieces[place]
        elif kind == 4:
            pieces[place:place] = pieces[place : place + generator.randint(1, 30)]
        else:
            pieces = list("".join(pieces).replace(generator.choice(words), generator.choice(words), 1))
        if not pieces:
            break
    return "".join(pieces)


def test_mutated_text_is_refused_or_read_and_nothing_else() -> None:
    x = UOp(Ops.RESHAPE, F32, (UOp(Ops.BUFFER, F32, (), BufferArg(0, 6, "CPU")),), (2, 3))
    moved = UOp(Ops.PAD, F32, (UOp(Ops.PERMUTE, F32, (x,), (1, 0)),), ((0, 1), (1, 0)))
    reduced = UOp(Ops.REDUCE_AXIS, F32, (moved * -0.5,), (Ops.MAX, (0, 1)))
    texts = [show(row_sums()), show(UOp(Ops.COPY, F32, (reduced,), "CPU:1")), show(const(F32, math.nan) + 1.5)]
    generator = random.Random(0)
    read = 0
    for number in range(2000):
        text = mutate(texts[number % len(texts)], generator)
        try:
            node = parse(text)
        except ParseError:
            continue
        read += 1
        # What was read keeps the rules, so that everything derived from it can be had.
        assert parse(show(node)) is node
        assert all(part.shape is not None and part.bounds is not None for part in toposort(node))
    assert 70 < read < 1930, "the mutations are too harsh or too mild to tell anything"


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet='%01= CONSTADDint32float()",.-#\n\\Axisnae'))
def test_any_text_is_refused_or_read(text: str) -> None:
    try:
        parse(text)
    except ParseError:
        pass


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | TEXTS, lambda x: st.tuples(x, x)))
def test_any_literal_comes_back(value: Any) -> None:
    node = parse(f"%0 = PARAM float32\n%1 = DETACH float32 %0 {literal(value)}", check=False)
    assert repr(node.arg) == repr(value)


# ---------------------------------------------------------------- for the eye

i = UOp(Ops.VARIABLE, dtypes.index, (), ("i", 0, 9))
j = UOp(Ops.VARIABLE, dtypes.index, (), ("j", 0, 9))


@pytest.mark.parametrize(
    ("node", "text"),
    [
        ((i * 4 + j) // 3, "(i*4 + j) // 3"),
        (i * 4 + j * 2, "i*4 + j*2"),
        (i + (j + 1), "i + (j + 1)"),
        (i + j + 1, "i + j + 1"),
        (i - (j - 1), "i - (j - 1)"),
        (i + -3, "i - 3"),
        (i * -3, "i*-3"),
        ((i // 2) * 2, "(i // 2)*2"),
        (i * 2 // 2, "i*2 // 2"),
        (i // (j * 2), "i // (j*2)"),
        (i % (j % 2), "i % (j % 2)"),
        (i * (j // 2), "i*(j // 2)"),
        (i % 4 % 2, "i % 4 % 2"),
        (-(i + 1), "-(i + 1)"),
        (-i * 2, "-i*2"),
        (i + 1 < j * 2, "i + 1 < j*2"),
        ((i < 3) & (j < 4), "(i < 3) & (j < 4)"),
        ((i < 3).eq(j < 4), "(i < 3) == (j < 4)"),
        ((i << 2) | (j & 3), "i << 2 | j & 3"),
        (i.maximum(j + 1), "max(i, j + 1)"),
        ((i < 3).where(i, j), "where(i < 3, i, j)"),
        (i.cast(dtypes.int32), "cast(int32, i)"),
        (loop(2, 8, AxisType.UPCAST) * 2, "u2*2"),
        (UOp(Ops.RANGE, dtypes.index, (i,), Axis((3, 1), AxisType.REDUCE)) + 1, "R3_1 + 1"),
        (load(param(1), i * 4, i < 3) * 2.0, "p1[i*4 if i < 3]*2.0"),
        (UOp(Ops.REDUCE, F32, (load(param(1), i), loop(0, 4)), Ops.ADD), "reduce(p1[i], L0, Ops.ADD)"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_expressions(node: UOp, text: str) -> None:
    assert show_expression(node) == text


def test_an_expression_that_would_explode_is_cut() -> None:
    node = i
    for _ in range(200):
        node = node * node
    assert len(show_expression(node)) < 5000
    deep = i
    for _ in range(20_000):
        deep = deep + j
    assert len(show_expression(deep)) < 5000


def test_a_program() -> None:
    row, inner, tile = loop(0, 4, AxisType.GLOBAL), loop(1, 4, AxisType.REDUCE), loop(2, 4, AxisType.UPCAST)
    acc = UOp(Ops.ACC, F32, (const(F32, 0.0), tile), 0)
    scaled = row * 4
    position = scaled + inner
    lane = position + tile
    index = UOp(Ops.INDEX, F32, (param(1), lane, tile < 3))
    value = UOp(Ops.LOAD, F32, (index,))
    update = UOp(Ops.ACCUMULATE, dtypes.void, (acc, value), Ops.ADD)
    end = UOp(Ops.END, dtypes.void, (inner,))
    total = UOp(Ops.COMBINE, F32, (acc, tile), Ops.ADD)
    root = total.alu(Ops.SQRT)
    target = UOp(Ops.INDEX, F32, (param(0, 4), row))
    store = UOp(Ops.STORE, dtypes.void, (target, root))
    body = (acc, scaled, inner, position, lane, index.src[2], index, value, update, end, total, root, target, store)
    params = (Param(0, F32, 4, False, True), Param(1, F32, 16, True, False))
    program = Program("rows", body, params, (row,), (), Target("PYTHON"))
    assert (
        show_program(program)
        == """\
program rows(p0: float32[4] written, p1: float32[16] read)
  global g0 in 0..4
  acc0: float32[u2:4] = 0.0
  v0: index = g0*4
  for R1 in 0..4:
    v1: index = v0 + R1
    v2: index[u2:4] = v1 + u2
    v3: bool[u2:4] = u2 < 3
    v4: float32[u2:4] = p1[v2 if v3]
    acc0 = add(acc0, v4)  # [u2:4]
  v5: float32 = combine(acc0, u2, Ops.ADD)
  v6: float32 = sqrt(v5)
  p0[g0] = v6
"""
    )


def test_every_value_survives_a_cast_of_its_text() -> None:
    """Constants are written as the dtype holds them, so reading them casts nothing."""
    for dtype in dtypes.floats:
        for value in (0.1, 1e-7, 3.0, -448.0):
            node = const(dtype, value)
            assert f" {cast_scalar(value, dtype)!r}" in show(node)
            assert parse(show(node)) is node
