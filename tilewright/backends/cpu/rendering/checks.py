"""Range checks. In: a CHECK node, and the name of the buffer for failures. Out: its value, the unchanged index, and a
branch, weighted as unlikely, to a block that stores an index that is out of range. All elements of a tile share
one branch; the comparison is the same instruction as that of a gather's mask."""

from __future__ import annotations

import itertools

from tilewright.backends.cpu.rendering.emitter import Emitter
from tilewright.backends.cpu.rendering.instructions import constant, of_lanes, scalar_type, value_type
from tilewright.backends.cpu.rendering.values import Values
from tilewright.base.dtype import dtypes
from tilewright.graph.kernels.edges import holds_at
from tilewright.graph.ops import Ops
from tilewright.graph.records import Program
from tilewright.graph.uop import UOp, memory_of
from tilewright.graph.walk import toposort

# LLVM moves an unlikely block out of the loop.
_UNLIKELY = "!1"
_WEIGHTS = '!1 = !{!"branch_weights", i32 1, i32 1048575}'


def checked_once(program: Program) -> dict[UOp, None]:
    """The nodes that are emitted before the loop over the launch, in order: range checks that do not depend on it, and
    their sources. LLVM would leave them inside, because each iteration stores to memory that may alias."""
    read_only = {param.slot for param in program.params if not param.is_written}
    fixed: dict[UOp, None] = {}
    inside = 0
    for node in program.body:
        inside += (node.op is Ops.RANGE and not node.arg.kind.is_tile) - (node.op is Ops.END)
        is_load = node.op is Ops.LOAD and memory_of(node.src[0]).op is Ops.PARAM
        is_pure = node.op.is_elementwise or node.op is Ops.INDEX
        if is_pure or (is_load and memory_of(node.src[0]).arg.slot in read_only):
            if not inside and all(_is_fixed(source, fixed) for source in node.src):
                fixed[node] = None
    checks = [node for node in fixed if node.op is Ops.CHECK]
    wanted = set(toposort(*checks)) if checks else set()
    return {node: None for node in fixed if node in wanted}


def _is_fixed(source: UOp, fixed: dict[UOp, None]) -> bool:
    is_tile = source.op is Ops.RANGE and source.arg.kind.is_tile
    return source in fixed or is_tile or source.op in (Ops.CONST, Ops.PARAM, Ops.VARIABLE)


def guarded_stores(program: Program) -> dict[UOp, UOp]:
    """Range checks that test the same condition as the mask of a store, each with the store, where the store is the
    last statement of the loop that both are in. A check that fails skips the rest of the iteration, so the store needs
    no mask."""
    found: dict[UOp, UOp] = {}
    here: set[UOp] = set()  # the nodes since the last effect or loop boundary
    for node, after in itertools.pairwise(program.body):
        is_loop = node.op is Ops.RANGE and not node.arg.kind.is_tile
        if is_loop or node.op in (Ops.END, Ops.STORE, Ops.ACCUMULATE, Ops.BARRIER):
            check = _masking_check(node) if node.op is Ops.STORE and after.op is Ops.END else None
            if check in here:
                found[check] = node
            here.clear()
        here.add(node)
    return found


def _masking_check(store: UOp) -> UOp | None:
    """The range check that tests the same condition as the mask of a store of one element."""
    index = store.src[0]
    if len(index.src) < 3 or any(axis.arg.kind.is_tile for axis in store.ranges):
        return None
    mask = index.src[2]
    check = mask.src[0].src[0] if mask.op is Ops.CMPLT and mask.src[0].op is Ops.CAST else mask
    if check.op is not Ops.CHECK or mask.src[0].dtype not in (dtypes.uint32, dtypes.uint64):
        return None
    is_same = mask.src[1].is_const and mask.src[1].arg == check.arg.size
    return check if is_same and check.src[1].is_const and check.src[1].arg is True else None


def emit_check(values: Values, node: UOp, words: str, behind: str = "passed") -> str:
    """Emits the check and returns the label of its blocks. The block of a failure continues at the block `behind`."""
    emitter, axis, lanes = values.emitter, values.facts.vector_axis(node), values.facts.lanes(node)
    kind, bits = value_type(node.dtype, lanes), of_lanes("i1", lanes)
    size = constant(node.dtype, node.arg.size, lanes)
    elements, failures = {}, []
    for coordinates, at in values.elements(node):
        value = values.operand(node.src[0], at, axis)
        elements[coordinates] = emitter.here(value)
        holds = holds_at(node.src[1], at)
        if holds is False:
            continue
        # Read as unsigned, a negative number is larger than any size.
        failed = emitter.assign(f"icmp uge {kind} {value}, {size}")
        if holds is None:
            failed = emitter.assign(f"and {bits} {failed}, {values.operand(node.src[1], at, axis)}")
        failures.append((failed, value))
    values[node] = elements
    if not failures:
        return ""
    any_failed = failures[0][0]
    for failed, _ in failures[1:]:
        any_failed = emitter.assign(f"or {bits} {any_failed}, {failed}")
    if lanes:
        any_failed = emitter.assign(emitter.fold_lanes(Ops.MAX, dtypes.bool, lanes, any_failed))
    label = emitter.fresh("check")
    emitter.declarations[_UNLIKELY] = _WEIGHTS
    emitter.line(f"  br i1 {any_failed}, label %{label}.failed, label %{label}.passed, !prof {_UNLIKELY}")
    emitter.begin_block(f"{label}.failed")
    _store_failure(emitter, node, lanes, failures, words)
    emitter.line(f"  br label %{label}.{behind}")
    emitter.begin_block(f"{label}.passed")
    return label


def _store_failure(emitter: Emitter, node: UOp, lanes: int, failures: list[tuple[str, str]], words: str) -> None:
    """Stores one of the values that failed to the word of the check."""
    kind, one = value_type(node.dtype, lanes), scalar_type(node.dtype)
    chosen = constant(node.dtype, 0, 0)
    for failed, value in failures:
        is_here = failed
        if lanes:
            mask = emitter.assign(f"bitcast <{lanes} x i1> {failed} to i{lanes}")
            is_here = emitter.assign(f"icmp ne i{lanes} {mask}, 0")
            first = emitter.call(f"llvm.cttz.i{lanes}", f"i{lanes}", (f"i{lanes}", mask), ("i1", "false"))
            value = emitter.assign(f"extractelement {kind} {value}, i{lanes} {emitter.assign(first)}")
        chosen = emitter.assign(f"select i1 {is_here}, {one} {value}, {one} {chosen}")
    word = dtypes.int64 if node.arg.bits == 64 else dtypes.int32
    if node.dtype is not word:
        chosen = emitter.assign(emitter.cast(node.dtype, word, 0, chosen))
    address = emitter.assign(f"getelementptr {scalar_type(word)}, ptr {words}, i64 {node.arg.number}")
    emitter.line(f"  store {scalar_type(word)} {chosen}, ptr {address}, align {word.itemsize}")
