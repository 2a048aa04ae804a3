"""Loads and stores of WGSL. In: LOAD and STORE nodes. Out: lines, and a function for each packed buffer.

A buffer is an array of its elements where WGSL can hold them, else of words with two or four elements each. Such an
element is stored by an atomic XOR of the changed bits of its word: other bits do not change, so other threads may store
adjacent elements at the same time. A tile that fills whole words stores words. A masked-off load
reads element 0 and drops it, a masked-off store is under an `if`. In local memory every element has its own word."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tilewright.backends.webgpu.language import WORD_BITS, WgslLanguage
from tilewright.base.dtype import DType, dtypes
from tilewright.codegen.c_style.emitter import Emitter
from tilewright.codegen.c_style.expressions import ATOM, Expression
from tilewright.codegen.c_style.memory import CStyleMemory, Row
from tilewright.codegen.tiles import memory_dtype
from tilewright.graph.ops import Ops
from tilewright.graph.records import Param
from tilewright.graph.uop import UOp, memory_of


def per_word(dtype: DType) -> int:
    """How many elements of a buffer are in one word; 1 where each has its own."""
    return 1 if dtype.is_float or dtype.bits >= WORD_BITS else WORD_BITS // dtype.bits


def word_of(index: str, dtype: DType) -> str:
    """The number of the word that contains an element."""
    return f"{index} >> {per_word(dtype).bit_length() - 1}u"


def shift_of(index: str, dtype: DType) -> str:
    """The bit offset of an element in its word."""
    return f"u32({index} & {per_word(dtype) - 1}) * {dtype.bits}u"


class WgslMemory(CStyleMemory):
    language: WgslLanguage

    def __init__(self, emitter: Emitter, params: Sequence[Param]) -> None:
        super().__init__(emitter)
        self.written = {param.slot for param in params if param.is_written}

    def binding(self, number: int, param: Param, name: str) -> str:
        """All are read_write: a buffer that holds several arrays may be read and written by one kernel."""
        element = self.language.memory_type(param.dtype)
        if per_word(memory_dtype(param.dtype)) > 1:
            element = "atomic<u32>" if param.is_written else "u32"
        return f"@group(0) @binding({number}) var<storage, read_write> {name}: array<{element}>;"

    def _is_packed(self, address: UOp) -> bool:
        return memory_of(address).op is Ops.PARAM and per_word(memory_dtype(address.dtype)) > 1

    def _runs(self, address: UOp, offsets: list[int]) -> Iterator[tuple[int, int]]:
        return (
            super()._runs(address, offsets) if self._is_packed(address) else ((offset, 1) for offset in sorted(offsets))
        )

    def _position(self, base: Expression | None, offset: int) -> Expression:
        if base is not None and base.text in self.language.known:
            return super()._position(None, int(self.language.known[base.text]) + offset)
        return super()._position(base, offset)

    # ------------------------------------------------------------ words

    def _word(self, address: UOp, index: str) -> str:
        """The word at an index, as a value."""
        memory = memory_of(address)
        text = f"{self.names[memory]}[{index}]"
        return f"atomicLoad(&{text})" if memory.arg.slot in self.written else text

    def _extracted(self, dtype: DType, word: str, shift: str) -> Expression:
        if not dtype.is_unsigned:
            word = f"bitcast<i32>({word})"
        return Expression(f"extractBits({word}, {shift}, {dtype.bits}u)")

    def _load_function(self, address: UOp) -> str:
        dtype, name = memory_dtype(address.dtype), self.names[memory_of(address)]
        kind = self.language.type_name(dtype)
        element = self._extracted(dtype, self._word(address, word_of("index", dtype)), shift_of("index", dtype))
        return self.language.function_of(f"load_{name}(index: i32) -> {kind}", f"return {element.text};")

    def _store_function(self, address: UOp) -> str:
        dtype, name = memory_dtype(address.dtype), self.names[memory_of(address)]
        word = f"&{name}[{word_of('index', dtype)}]"
        return self.language.function_of(
            f"store_{name}(index: i32, value: {self.language.type_name(dtype)})",
            f"let shift = {shift_of('index', dtype)};",
            f"let change = ((atomicLoad({word}) >> shift) ^ u32(value)) & {(1 << dtype.bits) - 1}u;",
            f"atomicXor({word}, change << shift);",
        )

    # ------------------------------------------------------------ loads

    def _load_element(self, address: UOp, row: Row, offset: int, label: str) -> Expression:
        position = self._masked(self._position(row.base, offset), row.mask).text
        if self._is_packed(address):
            text = Expression(f"{self._load_function(address)}({position})")
        else:
            text = Expression(f"{self.names[memory_of(address)]}[{position}]")
        if address.dtype.is_bool:
            text = self.language.cast(dtypes.uint8, dtypes.bool, text)
        return self.emitter.declare(address.dtype, self._chosen(row, text), label)

    def _masked(self, position: Expression, mask: Expression | None) -> Expression:
        """A position, or that of the first element: `select` computes both sides."""
        return position if mask is None else Expression(f"select(0, {position.text}, {mask.text})")

    def _chosen(self, row: Row, text: Expression) -> Expression:
        if row.mask is None or row.otherwise is None:
            return text
        return Expression(f"select({row.otherwise.text}, {text.text}, {row.mask.text})")

    def _load_vector(self, address: UOp, row: Row, offset: int, width: int) -> list[Expression]:
        """The elements of one word."""
        dtype = memory_dtype(address.dtype)
        position = self._masked(self._position(row.base, offset), row.mask)
        text = self._word(address, word_of(position.within(ATOM), dtype))
        word = self.emitter.declare(dtypes.uint32, Expression(text), self.emitter.fresh("word"))
        lanes = []
        for lane in range(width):
            value = self._extracted(dtype, word.text, f"{lane * dtype.bits}u")
            if address.dtype.is_bool:
                value = self.language.cast(dtypes.uint8, dtypes.bool, value)
            lanes.append(self.emitter.declare(address.dtype, self._chosen(row, value), self.emitter.fresh("val")))
        return lanes

    # ------------------------------------------------------------ stores

    def _store_line(self, address: UOp, base: Expression | None, offset: int, values: list[Expression]) -> str:
        name, dtype, position = (
            self.names[memory_of(address)],
            memory_dtype(address.dtype),
            self._position(base, offset),
        )
        if len(values) > 1:
            texts = [value.within(ATOM) for value in values]
            if not dtype.is_unsigned:
                # Sign bits would overwrite the other elements of the word.
                texts = [f"(u32({value.text}) & {(1 << dtype.bits) - 1}u)" for value in values]
            parts = [f"({text} << {lane * dtype.bits}u)" if lane else text for lane, text in enumerate(texts)]
            return f"atomicStore(&{name}[{word_of(position.within(ATOM), dtype)}], {' | '.join(parts)});"
        if self._is_packed(address):
            return f"{self._store_function(address)}({position.text}, {values[0].text});"
        return f"{name}[{position.text}] = {values[0].text};"
