"""Programs as WGSL. In: a `Program`. Out: the text of one compute shader.

Tiles, names, loops and order come from the shared C renderer; this file says which floating point results must be kept
from a compiler that computes as with real numbers."""

from __future__ import annotations

import struct

from tilewright.backends.webgpu.language import WgslLanguage
from tilewright.backends.webgpu.storage import WgslMemory
from tilewright.base.dtype import DType, Scalar, cast_scalar
from tilewright.base.target import WIDE_INTEGERS
from tilewright.codegen.c_style.emitter import element_name
from tilewright.codegen.c_style.expressions import Expression
from tilewright.codegen.c_style.folds import fold_body
from tilewright.codegen.c_style.renderer import CStyleRenderer
from tilewright.graph.interpreter.scalar import ScalarMath
from tilewright.graph.ops import Ops
from tilewright.graph.records import Program
from tilewright.graph.spec import Op
from tilewright.graph.uop import UOp
from tilewright.graph.walk import consumers

_ROUNDED = frozenset({Ops.ADD, Ops.SUB, Ops.MUL, Ops.FDIV, Ops.SQRT})
_CONVERSIONS = frozenset({Ops.CAST, Ops.BITCAST})
# Ops that read a float as it is; a compiler may rewrite any other together with the op that computes its operand.
_TAKES_AS_IS = frozenset({Ops.STORE, Ops.BITCAST})


class WgslRenderer(CStyleRenderer):
    language: WgslLanguage
    memory: WgslMemory

    def __init__(self, program: Program) -> None:
        super().__init__(program, WgslLanguage(program.target))
        self.memory = WgslMemory(self.emitter, program.params)
        self.language.orders_buffers = any(param.is_read and param.is_written for param in program.params)
        self.exposed = self._find_exposed()

    def render(self) -> str:
        for number, param in enumerate(self.program.params):
            self.language.globals.append(self.memory.binding(number, param, self._param_name(param)))
        if self.program.variables:
            binding = len(self.program.params)
            declared = f"@group(0) @binding({binding}) var<storage, read_write> variables: array<i32>;"
            self.language.globals.append(declared)
        text = super().render()
        # Local memory is declared outside of the function, which leaves an empty line in it.
        return "\n".join(line for line in text.splitlines() if line.strip() or not line.startswith("  ")) + "\n"

    # ------------------------------------------------------------ accumulators

    def _emit_accumulator(self, node: UOp) -> None:
        """One declaration each: a `var` declares one name."""
        start = self.language.literal(node.dtype, node.src[0].arg).text
        self.emitter.values[node] = {}
        for coordinates, _ in self.emitter.elements(node):
            name = element_name(f"acc{node.arg}", coordinates)
            self.emitter.line(f"{self.language.variable(node.dtype, name)} = {start};")
            self.emitter.values[node][coordinates] = Expression(name)

    def _join(self, op: Op, dtype: DType, left: Expression, right: Expression | None = None) -> Expression:
        if dtype not in WIDE_INTEGERS or right is None:
            return super()._join(op, dtype, left, right)
        kind = self.language.type_name(dtype)
        head = f"{op.name.lower()}_{dtype.name}(a: {kind}, b: {kind}) -> {kind}"
        name = self.language.function_of(head, *fold_body(self.language, self._spell, op, dtype))
        return Expression(f"{name}({left.text}, {right.text})")

    # ------------------------------------------------------------ floats

    def _find_exposed(self) -> set[UOp]:
        """Rounded results that another operation takes, so that a compiler might rewrite the two together; and floats
        made of integers, which may turn out to be a constant zero.

        A product of two variables that goes into a sum is left alone: the two may be one FMA."""
        users = consumers(self.program.body)
        return {node for node in users if _is_rewritten(node) and any(_may_rewrite(node, user) for user in users[node])}

    def _spell(self, node: UOp, operands: list[Expression]) -> Expression:
        known = [self.language.known[operand.text] for operand in operands if operand.text in self.language.known]
        if len(known) == len(operands):
            return self.language.literal(node.dtype, _fold(node, known))
        if not node.src[0].dtype.is_float and not node.dtype.is_float:
            return super()._spell(node, operands)
        language, dtype = self.language, node.src[0].dtype
        is_same = len(operands) == 2 and node.src[0] is node.src[1]
        if node.op in (Ops.CMPEQ, Ops.CMPNE) and is_same:
            nan = language.is_nan(dtype, operands[0])
            return nan if node.op is Ops.CMPNE else Expression(f"!{nan.text}")
        if node.op in (Ops.SUB, Ops.FDIV) and is_same:
            operands[1] = language.exact(dtype, operands[1])
        if node.op is Ops.WHERE and node.src[0].op is Ops.CMPLT and {*node.src[0].src} == {*node.src[1:]}:
            # A compiler would take this for its own minimum or maximum, which drops NaN.
            operands[1] = language.exact(node.dtype, operands[1])
        made = super()._spell(node, operands)
        return language.exact(node.dtype, made) if node in self.exposed else made


def _fold(node: UOp, values: list[Scalar]) -> Scalar:
    """An op on constants (tile axes are constants here): WGSL refuses constant arithmetic that overflows."""
    source = node.src[0].dtype
    if node.op is Ops.CAST or (node.op is Ops.BITCAST and (source.is_bool or node.dtype.is_bool)):
        return cast_scalar(values[0], node.dtype)
    if node.op is Ops.BITCAST:
        (value,) = struct.unpack(f"<{node.dtype.code}", struct.pack(f"<{source.code}", values[0]))
        return value if node.dtype.is_float else int(value)
    assert node.op.value is not None
    return cast_scalar(node.op.value(ScalarMath, *values), node.dtype)


def _is_rewritten(node: UOp) -> bool:
    if not node.dtype.is_float:
        return False
    return node.op in _ROUNDED or (node.op in _CONVERSIONS and not node.src[0].dtype.is_float)


def _may_rewrite(node: UOp, user: UOp) -> bool:
    if user.op is Ops.ACCUMULATE and user.arg is Ops.ADD and node.op is Ops.MUL:
        return any(src.is_const for src in node.src)
    return user.op not in _TAKES_AS_IS


def render(program: Program) -> str:
    return WgslRenderer(program).render()
