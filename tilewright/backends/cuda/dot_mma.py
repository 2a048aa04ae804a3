"""Programs with a DOT, on the tensor cores of any card since sm_80. In: a `Program`. Out: the text of one kernel.
Stands beside `dot.py`, which is for cards with wgmma; a product that wgmma does not take comes here too.

All threads copy both operands' tiles into shared memory, in two alternating stages, and each warp multiplies its part.
A register of an operand holds 4 bytes of the summed axis: one load where that axis is contiguous, else assembled
from several. Lines are padded by 16 bytes, so that the 8 lines that a warp reads at once lie in different banks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.backends.cuda.dot_text import OPERANDS
from tilewright.backends.cuda.renderer import CudaLanguage
from tilewright.base.errors import InternalError
from tilewright.base.target import TensorCore
from tilewright.codegen.c_style.emitter import Emitter
from tilewright.codegen.c_style.expressions import Expression
from tilewright.codegen.c_style.renderer import CStyleRenderer
from tilewright.graph.affine import affine
from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.records import Program
from tilewright.graph.uop import UOp
from tilewright.graph.walk import size_of

CHUNK_BYTES = 16
PADDING_BYTES = 16
STAGES = 2
# An instruction multiplies 16 rows and 8 columns over 32 bytes of the summed axis.
DEPTHS = {1: 32, 2: 16, 4: 8}
# Rows and columns of a work-group's tile that one warp multiplies.
WARP_ROWS, WARP_COLUMNS = 64, 32
THREADS = 256

_HELPERS = """\
__device__ inline void copy_chunk(void* to, const void* from, int bytes) {
  unsigned long long place; asm("cvta.to.shared.u64 %0, %1;" : "=l"(place) : "l"(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"((unsigned int)place), "l"(from), "r"(bytes));
}
__device__ inline void copies_sent() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> __device__ inline void copies_done() {
  asm volatile("cp.async.wait_group %0;" :: "n"(N) : "memory");
}"""


class _Side:
    """One operand: its name in the text, its lines in shared memory, and the source of its registers."""

    def __init__(
        self, name: str, buffer: str, kind: str, tile: int, size: int, steps: tuple[int, int], core: TensorCore
    ):
        self.name = name
        self.buffer = buffer
        self.kind = kind  # the type that the buffer's elements have in the text
        self.size = size
        self.step = max(steps)
        self.is_summed_fast = steps[1] == 1
        self.itemsize = core.operand.itemsize
        depth = core.depth
        self.lines, wide = (tile, depth) if self.is_summed_fast else (depth, tile)
        self.line_bytes = wide * self.itemsize
        self.pitch = self.line_bytes + PADDING_BYTES

    def declare(self) -> str:
        return f"__shared__ __align__(16) unsigned char {self.name}_tile[{STAGES}][{self.lines * self.pitch}];"

    def copy(self, first: str, length: int, depth: int) -> list[str]:
        """All threads copy chunks of lines, with zeros past the edges."""
        chunks = self.line_bytes // CHUNK_BYTES
        own, summed = first, f"step * {depth}"
        line_start, line_count = (own, self.size) if self.is_summed_fast else (summed, length)
        wide_start, wide_count = (summed, length) if self.is_summed_fast else (own, self.size)
        elements = CHUNK_BYTES // self.itemsize
        return [
            f"for (int n = thread; n < {self.lines * chunks}; n += {THREADS}) {{",
            f"  const int line = n / {chunks}, chunk = n % {chunks};",
            f"  const int y = {line_start} + line, x = {wide_start} + chunk * {elements};",
            f"  const int there = y < {line_count} ? min({elements}, max(0, {wide_count} - x)) * {self.itemsize} : 0;",
            f"  const {self.kind}* from = {self.buffer} + (there ? (long long)y * {self.step} + x : 0);",
            f"  copy_chunk({self.name}_tile[into] + line * {self.pitch} + chunk * {CHUNK_BYTES}, from, there);",
            "}",
        ]

    def register(self, own: str, summed: str) -> str:
        """4 bytes of the summed axis, from element `summed` of row or column `own` on."""
        tile = f"{self.name}_tile[stage]"
        if self.is_summed_fast:
            return f"*(const unsigned int*)({tile} + ({own}) * {self.pitch} + ({summed}) * {self.itemsize})"
        kind = {1: "unsigned char", 2: "unsigned short", 4: "unsigned int"}[self.itemsize]
        parts = []
        for number in range(4 // self.itemsize):
            address = f"{tile} + ({summed} + {number}) * {self.pitch} + ({own}) * {self.itemsize}"
            parts.append(f"(unsigned int)*(const {kind}*)({address}) << {8 * self.itemsize * number}")
        return " | ".join(parts)


class MmaLanguage(CudaLanguage):
    def __init__(self, program: Program, core: TensorCore) -> None:
        super().__init__(program)
        self.core = core

    def prelude(self, program: Program) -> list[str]:
        kind, depth = OPERANDS[self.core.operand], DEPTHS[self.core.operand.itemsize]
        multiply = (
            "typedef unsigned int word;\n"
            "__device__ inline void multiply(float (&acc)[4], const word (&a)[4], const word (&b)[2]) {\n"
            f'  asm volatile("mma.sync.aligned.m16n8k{depth}.row.col.f32.{kind}.{kind}.f32 "\n'
            '    "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"\n'
            '    : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])\n'
            '    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));\n}'
        )
        return [*super().prelude(program), _HELPERS, multiply]


class MmaRenderer(CStyleRenderer):
    def __init__(self, program: Program, node: UOp, core: TensorCore) -> None:
        super().__init__(program, MmaLanguage(program, core))
        self.core = core
        self.node = node
        # Whether a thread has 8 neighbouring columns, 2 of each instruction.
        terms = affine(node.src[5]).terms
        self.has_vectors = any(step == 1 and size_of(axis) > 2 for axis, step in terms.items() if axis.arg.kind.is_tile)

    def open_group(self) -> None:
        """The threads as the core numbers them."""
        self.emitter.line("const int thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;")
        name_threads(self.emitter, self.node.src[4:6], "thread")

    def emit_node(self, node: UOp) -> None:
        if node.op is not Ops.DOT:
            super().emit_node(node)
            return
        left, right = self._sides()
        for line in self._multiply(left, right):
            self.emitter.line(line)

        def register(row: int, column: int) -> str:
            instruction = column // (2 if self.has_vectors else 8)
            return f"acc[{row // 16}][{instruction}][{row % 16 // 8 * 2 + column % 2}]"

        self.emitter.values[node] = name_registers(self.emitter, node, node.src[4:6], register)

    def _sides(self) -> tuple[_Side, _Side]:
        argument, core, found = self.node.arg, self.core, []
        for number, name, tile, size, steps in (
            (0, "left", core.rows, argument.rows, argument.left),
            (1, "right", core.columns, argument.columns, argument.right),
        ):
            memory = self.node.src[number]
            param = next(param for param in self.program.params if param.slot == memory.arg.slot)
            kind = self.language.memory_type(memory.dtype)
            start = self.emitter.operand(self.node.src[2 + number], {}).text
            self.emitter.line(f"const {kind}* const {name}_start = {self._param_name(param)} + {start};")
            found.append(_Side(name, f"{name}_start", kind, tile, size, steps, core))
        return found[0], found[1]

    def _tile(self, number: UOp, size: int) -> str:
        axis = next((axis for axis in self.program.global_ranges if axis in number.ranges), None)
        return "0" if axis is None else f"{self.emitter.values[axis][()].text} * {size}"

    def _multiply(self, left: _Side, right: _Side) -> list[str]:
        core, length = self.core, self.node.arg.length
        steps = -(-length // core.depth)
        copies = [
            *left.copy(self._tile(self.node.src[4], core.rows), length, core.depth),
            *right.copy(self._tile(self.node.src[5], core.columns), length, core.depth),
        ]
        rows, columns = WARP_ROWS // 16, WARP_COLUMNS // 8
        return [
            left.declare(),
            right.declare(),
            f"float acc[{rows}][{columns}][4] = {{}};",
            "const int line_of = thread % 32 / 4, part_of = thread % 4;",
            f"const int warp_row = thread / 128 * {WARP_ROWS}, warp_column = thread / 32 % 4 * {WARP_COLUMNS};",
            "auto copy_step = [&](int step, int into) {",
            *(f"  {line}" for line in copies),
            "  copies_sent();",
            "};",
            "copy_step(0, 0);",
            f"for (int step = 0; step < {steps}; step++) {{",
            f"  const int stage = step % {STAGES};",
            f"  if (step + 1 < {steps}) {{ copy_step(step + 1, (step + 1) % {STAGES}); copies_done<1>(); }}",
            "  else copies_done<0>();",
            "  __syncthreads();",
            "  #pragma unroll",
            f"  for (int inner = 0; inner < {min(length, core.depth)}; inner += {DEPTHS[core.operand.itemsize]}) {{",
            *(f"    {line}" for line in self._multiply_step(left, right, rows, columns)),
            "  }",
            "  __syncthreads();",
            "}",
        ]

    def _multiply_step(self, left: _Side, right: _Side, rows: int, columns: int) -> list[str]:
        elements = 4 // self.core.operand.itemsize
        near, far = f"inner + part_of * {elements}", f"inner + part_of * {elements} + {4 * elements}"
        row, column = "warp_row + i * 16 + line_of", "warp_column + j * 8 + line_of"
        if self.has_vectors:
            column = "warp_column + line_of / 2 * 8 + j * 2 + line_of % 2"
        lefts = [left.register(where, part) for part in (near, far) for where in (row, f"{row} + 8")]
        rights = [right.register(column, part) for part in (near, far)]
        return [
            f"unsigned int a[{rows}][4], b[{columns}][2];",
            "#pragma unroll",
            f"for (int i = 0; i < {rows}; i++) {{",
            *(f"  a[i][{number}] = {text};" for number, text in enumerate(lefts)),
            "}",
            "#pragma unroll",
            f"for (int j = 0; j < {columns}; j++) {{",
            *(f"  b[j][{number}] = {text};" for number, text in enumerate(rights)),
            "}",
            "#pragma unroll",
            f"for (int i = 0; i < {rows}; i++) {{",
            "  #pragma unroll",
            f"  for (int j = 0; j < {columns}; j++) multiply(acc[i][j], a[i], b[j]);",
            "}",
        ]


def name_threads(emitter: Emitter, numbers: Sequence[UOp], thread: str) -> None:
    """The core's thread axes from the number of a thread. TC gave them ids in the core's order, which is the card's;
    a launch may list them in another, which would exchange the elements of threads."""
    axes = {axis for number in numbers for axis in number.ranges if axis.arg.kind is AxisType.LOCAL}
    stride = 1
    for axis in sorted(axes, key=lambda axis: axis.arg.id, reverse=True):
        name, kind = emitter.axis_name(axis), emitter.language.type_name(axis.dtype)
        divided = thread if stride == 1 else f"{thread} / {stride}"
        emitter.line(f"const {kind} {name} = {divided} % {size_of(axis)};")
        emitter.values[axis] = {(): Expression(name)}
        stride *= size_of(axis)


def name_registers(
    emitter: Emitter, node: UOp, numbers: Sequence[UOp], register: Callable[[int, int], str]
) -> dict[tuple[int, ...], Expression]:
    """The register of each element that a thread holds. `numbers` are the row and the column of an element; `register`
    takes the parts of them that do not depend on the thread."""
    forms = [affine(number).terms for number in numbers]
    found = {}
    for coordinates, at in emitter.elements(node):
        row, column = (sum(step * at[axis] for axis, step in form.items() if axis in at) for form in forms)
        found[coordinates] = Expression(register(row, column))
    return found


def parts_of_tile(numbers: Sequence[UOp]) -> list[UOp]:
    """The tile axes of a thread's elements, except that of adjacent columns."""
    tiles = [(affine(number).terms, axis) for number in numbers for axis in number.ranges if axis.arg.kind.is_tile]
    return sorted((axis for terms, axis in tiles if terms[axis] > 1), key=lambda axis: axis.arg.id)


def render_mma(program: Program, node: UOp, core: TensorCore) -> str:
    if (core.rows, core.columns) != (2 * WARP_ROWS, 4 * WARP_COLUMNS):
        raise InternalError(f"mma multiplies tiles of {2 * WARP_ROWS} by {4 * WARP_COLUMNS}, not {core.name}")
    return MmaRenderer(program, node, core).render()
