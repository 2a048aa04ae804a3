"""The CUDA text of products in a `TileChain`. In: a TILE_DOT and the addresses of its tiles. Out: lines of text.
`chain_renderer.py` describes how the pieces work together."""

from __future__ import annotations

import re

from tilewright.backends.cuda import chain_parts
from tilewright.backends.cuda.dot_text import OPERANDS, PATTERN_BYTES, STEP_BYTES
from tilewright.backends.cuda.tile_text import GROUP_HELPERS, HELPERS, is_summed_fast
from tilewright.base.dtype import DType, dtypes
from tilewright.base.target import TileLayout
from tilewright.graph.uop import UOp

# Steps of a sum that an instruction takes, and rows of a warp group.
STEP, GROUP_ROWS = 16, 64
# Helpers of a chain besides those of any product of tiles. A denormal power of two is flushed to 0: it is a weight
# beside one that is at least 1.
_HELPERS = """\
__device__ inline float exp2_float32(float x) {
  float y; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y;
}
template <bool VALUE> struct Flag { static constexpr bool value = VALUE; };"""


def operand_of(dot: UOp) -> DType:
    """The dtype that a core multiplies, from its name: memory may hold it as its bits."""
    found = re.fullmatch(r"wgmma_(\w+)_(\d+)x(\d+)", dot.arg.core)
    assert found is not None
    return next(dtype for dtype in dtypes.all if dtype.name == found[1])


def rows_of(dot: UOp) -> int:
    return int(dot.arg.core.rpartition("_")[2].partition("x")[0])


def columns_of(dot: UOp) -> int:
    return int(dot.arg.core.rpartition("x")[2])


def prelude(dots: tuple[UOp, ...]) -> list[str]:
    helpers = {helper_name(dot): _multiply_helper(dot) for dot in dots}
    kind = OPERANDS[operand_of(dots[0])]
    pack = (
        "__device__ inline word pack(float low, float high) {\n"
        f'  word y; asm("cvt.rn.{kind}x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low)); return y;\n}}'
    )
    parts = {helper_name(dot): dot for dot in dots if dot.arg.parts > 1}
    plain = [chain_parts.plain_helper(dot, name, columns_of(dot)) for name, dot in parts.items()]
    others = [chain_parts.HELPERS, *plain] if parts else [pack]
    return [HELPERS, GROUP_HELPERS, _HELPERS, *helpers.values(), *others]


def helper_name(dot: UOp) -> str:
    left = "held" if dot.arg.left is None else "rows" if is_summed_fast(dot.arg.left) else "columns"
    return f"multiply_{columns_of(dot)}_{left}_{'rows' if is_summed_fast(dot.arg.right) else 'columns'}"


def _multiply_helper(dot: UOp) -> str:
    """A step of the sum: the product, added to the registers where `add`."""
    count, kind = columns_of(dot) // 2, OPERANDS[operand_of(dot)]
    names = ", ".join(f"%{number}" for number in range(count))
    results = ", ".join(f'"+f"(acc[{number}])' for number in range(count))
    layouts = [layout for layout in (dot.arg.left, dot.arg.right) if layout is not None]
    orders = "".join(f", {int(not is_summed_fast(layout))}" for layout in layouts)
    if dot.arg.left is None:
        parameter, left = "const word* a", [f"%{count + n}" for n in range(4)]
        given = ", ".join(f'"r"(a[{n}])' for n in range(4))
        text = f"{{{', '.join(left)}}}"
    else:
        parameter, left, given = "address a", [f"%{count}"], '"l"(a)'
        text = left[0]
    right, add = count + len(left), count + len(left) + 1
    instruction = f"wgmma.mma_async.sync.aligned.m64n{columns_of(dot)}k{STEP}.f32.{kind}.{kind}"
    return (
        f"__device__ inline void {helper_name(dot)}(float (&acc)[{count}], {parameter}, address right, int add) {{\n"
        f'  asm volatile("{{\\n.reg .pred add;\\nsetp.ne.b32 add, %{add}, 0;\\n"\n'
        f'    "{instruction} {{{names}}}, "\n'
        f'    "{text}, %{right}, add, 1, 1{orders};\\n}}\\n"\n'
        f'    : {results}\n    : {given}, "l"(right), "r"(add));\n}}'
    )


def described(layout: TileLayout, address: str, itemsize: int) -> str:
    """The operand's part of a step: 32 bytes of a line, or the lines of 16 elements where these run across the sum."""
    if not is_summed_fast(layout):
        step = STEP * layout.summed_step * itemsize
        return f"describe({address} + part * {step}, {layout.block_step * itemsize}, {PATTERN_BYTES})"
    offset = f"part * {STEP_BYTES}"
    if layout.summed_block:
        per_line = layout.summed_block // STEP
        offset = f"part / {per_line} * {layout.summed_block_step * itemsize} + part % {per_line} * {STEP_BYTES}"
    return f"describe({address} + {offset}, 16, {PATTERN_BYTES})"


def multiply(dot: UOp, name: str, left: str, right: str, is_added: bool) -> list[str]:
    """All steps of a product into the registers `name`, which may be read after `wait`; `left` names registers, or the
    address of a tile."""
    if dot.arg.parts == 1:
        return ["products_start();", *_steps(dot, name, left, right, is_added), "products_sent();"]
    itemsize, lines = operand_of(dot).itemsize, []
    for number, (mine, theirs) in enumerate(chain_parts.PRODUCTS):
        step = dot.arg.length // 4 if dot.arg.left is None else chain_parts.plane_size(dot, 0) * itemsize
        plane = f"{right} + {theirs * chain_parts.plane_size(dot, 1) * itemsize}"
        lines += _steps(dot, name, f"{left} + {mine * step}", plane, is_added or number > 0)
    return ["products_start();", *lines, "products_sent();"]


def _steps(dot: UOp, name: str, left: str, right: str, is_added: bool) -> list[str]:
    itemsize = operand_of(dot).itemsize
    layout = dot.arg.left
    if layout is None:
        first = f"{left} + part * 4"
    else:
        group = GROUP_ROWS * layout.own_step if is_summed_fast(layout) else layout.block_step
        address = f"{left} + thread / 128 * {group * itemsize}" if rows_of(dot) > GROUP_ROWS else left
        first = described(layout, address, itemsize)
    second = described(dot.arg.right, right, itemsize)
    return [
        "#pragma unroll",
        f"for (int part = 0; part < {dot.arg.length // STEP}; part++)",
        f"  {helper_name(dot)}({name}, {first}, {second}, {'1' if is_added else 'part > 0'});",
    ]


def wait(names: list[str], unfinished: int, is_late: bool = False) -> list[str]:
    """Waits for all products but the last ones, after which the registers `names` may be read. Where one of those is
    late, the first step has one fewer."""
    count = f"is_first.value ? {unfinished - 1} : {unfinished}" if is_late else str(unfinished)
    return [f"products_done<{count}>();", *(f"settle({name});" for name in names)]


def stage_ahead(ahead: int, stop: str) -> list[str]:
    """The first steps, staged by all threads."""
    first = [
        "#pragma unroll 1",
        f"for (int step = 0; step < {ahead}; step++) {{",
        f"  if (step < {stop}) stage_step(step, step);",
        "  copies_sent();",
        "}",
    ]
    return [*(first if ahead else ()), f"int slot = 0, next = {ahead};"]


def open_step(ahead: int, step: str, stop: str) -> list[str]:
    """Waits for the tiles of a step, and stages a later one."""
    following = [f"if ({step} + {ahead} < {stop}) stage_step({step} + {ahead}, next);", "copies_sent();"]
    waiting = [f"copies_done<{max(0, ahead - 1)}>();", "stores_done();", "__syncthreads();"]
    # Without stages to spare a step is staged after the last one is done, and waited for.
    return [*waiting, *following] if ahead else ["__syncthreads();", *following, *waiting]


def close_step(stages: int, is_late: bool) -> list[str]:
    lines = ["last = slot;"] if is_late else []
    if stages > 1:
        lines += [f"{each} = {each} == {stages - 1} ? 0 : {each} + 1;" for each in ("slot", "next")]
    return lines


def run_steps(kind: str, stop: str) -> list[str]:
    """All steps of a loop whose body is a function; the first step is a separate instance."""
    return [
        f"if (0 < {stop}) run_step(0, Flag<true>());",
        "#pragma unroll 1",
        f"for ({kind} step = 1; step < {stop}; step++) run_step(step, Flag<false>());",
    ]
