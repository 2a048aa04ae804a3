"""The plan of an emulated program. In: a linear `Program`. Out: a `Plan`: the ends of loops, the tile axes, the last
use of each value. The emulator walks the body by it; a body that uses a value before it is computed, or outside of the
loop that computes it, is refused here."""

from __future__ import annotations

from tilewright.base.errors import InternalError
from tilewright.base.records import record
from tilewright.graph.ops import Ops
from tilewright.graph.records import Program
from tilewright.graph.uop import TILE_DOT_CLOSED, UOp
from tilewright.graph.walk import toposort

MEMORY_OPS = frozenset({Ops.PARAM, Ops.DEFINE_LOCAL, Ops.DEFINE_REG})


@record
class Plan:
    """`ends[k]` is the position of the END of the loop opened at k; `releases[k]` are the values that are not read
    after k.

    `tile_ranges` are in the order of their ids, which is the order in which their elements are folded. `constants` are
    CONST and VARIABLE nodes. `trips` are the computed trip counts of loops."""

    ends: dict[int, int]
    releases: tuple[tuple[UOp, ...], ...]
    tile_ranges: tuple[UOp, ...]
    memories: tuple[UOp, ...]
    constants: tuple[UOp, ...]
    trips: tuple[UOp, ...]


def value_sources(node: UOp) -> tuple[UOp, ...]:
    """The nodes whose values executing `node` reads. Sources of void dtype only state an order, which `body` has."""
    if node.op is Ops.LOAD:
        found = (*node.src[0].src[1:], *node.src[1:])
    elif node.op is Ops.STORE:
        found = (*node.src[0].src[1:], node.src[1])
    elif node.op in (Ops.ACC, Ops.RANGE):
        found = node.src[:1]
    elif node.op is Ops.ACCUMULATE:
        found = node.src[1:]
    elif node.op in (Ops.DOT, Ops.TILE_DOT):
        found = node.src[2:]
        if node.op is Ops.TILE_DOT and node.arg.left is None:
            found = (node.src[0], *node.src[2:TILE_DOT_CLOSED])
    elif node.op is Ops.WARP_FOLD:
        found = node.src[:1]
    elif node.op.is_elementwise:
        found = node.src
    else:
        found = ()
    return tuple(src for src in found if src.op is not Ops.CONST and src.dtype.kind != "void")


def is_loop(node: UOp, launch_ranges: frozenset[UOp]) -> bool:
    return node.op is Ops.RANGE and node not in launch_ranges


def make_plan(program: Program) -> Plan:
    """Checks the structure of the body and makes the plan."""
    launch_ranges = frozenset((*program.global_ranges, *program.local_ranges))
    reachable = toposort(*program.body)
    tiles = [node for node in reachable if node.op is Ops.RANGE and node.arg.kind.is_tile and node not in launch_ranges]
    tiles.sort(key=lambda node: (node.arg.id, node.arg.kind.value))
    ends, enclosing = _match_loops(program, launch_ranges, frozenset(tiles))
    constants = tuple(node for node in reachable if node.op in (Ops.CONST, Ops.VARIABLE))
    always_known = launch_ranges | frozenset(tiles) | frozenset(constants)
    releases = _find_releases(program, ends, enclosing, always_known)
    memories = tuple(node for node in reachable if node.op in MEMORY_OPS)
    counts = dict.fromkeys(program.body[start].src[0] for start in ends)
    trips = tuple(count for count in counts if count.op not in (Ops.CONST, Ops.VARIABLE))
    return Plan(ends, releases, tuple(tiles), memories, constants, trips)


def _match_loops(
    program: Program, launch_ranges: frozenset[UOp], tiles: frozenset[UOp]
) -> tuple[dict[int, int], list[tuple[int, ...]]]:
    """Pair each loop RANGE with its END, and find for each position the loops (by their start) that contain it."""
    ends: dict[int, int] = {}
    enclosing: list[tuple[int, ...]] = []
    stack: list[int] = []
    for position, node in enumerate(program.body):
        if node.op is Ops.END:
            if not stack or program.body[stack[-1]] is not node.src[0]:
                raise InternalError(f"{program.name}: body[{position}] END does not close the innermost open loop")
            ends[stack.pop()] = position
        enclosing.append(tuple(stack))
        if is_loop(node, launch_ranges):
            if node in tiles:
                raise InternalError(f"{program.name}: body[{position}] is the tile axis {node!r}; tiles have no loop")
            stack.append(position)
    if stack:
        raise InternalError(f"{program.name}: the loop opened at body[{stack[-1]}] is never closed")
    return ends, enclosing


def _find_releases(
    program: Program, ends: dict[int, int], enclosing: list[tuple[int, ...]], always_known: frozenset[UOp]
) -> tuple[tuple[UOp, ...], ...]:
    """For each position the values last read there. A value from outside a loop is read until that loop ends."""
    defined: dict[UOp, int] = {}
    last_use: dict[UOp, int] = {}
    for position, node in enumerate(program.body):
        if node in always_known:
            continue
        for src in value_sources(node):
            if src in always_known:
                continue
            if src not in defined:
                raise InternalError(
                    f"{program.name}: body[{position}] {node!r} uses {src!r}, which is not computed yet"
                )
            definition = defined[src]
            # A RANGE is known inside the loop that it opens, not at its own level.
            scope = enclosing[definition] + ((definition,) if definition in ends else ())
            here = enclosing[position]
            if here[: len(scope)] != scope:
                raise InternalError(
                    f"{program.name}: body[{position}] {node!r} uses {src!r} outside of the loop that computes it"
                )
            until = ends[here[len(scope)]] if len(here) > len(scope) else position
            last_use[src] = max(until, last_use.get(src, 0))
        defined[node] = position
        last_use[node] = max(position, last_use.get(node, 0))
    releases: list[list[UOp]] = [[] for _ in program.body]
    for node, position in last_use.items():
        # The value of a RANGE is exchanged by its END, which also drops it.
        if node.op is not Ops.RANGE:
            releases[position].append(node)
    return tuple(tuple(nodes) for nodes in releases)
