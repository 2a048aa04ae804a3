"""Loads and stores of tiles. In: LOAD and STORE nodes. Out: text.

Along the vector axis a stride of 1 is a vector access, -1 a reversed one, a small one keeps some lanes of contiguous
loads, any other is a gather or scatter. A masked access never branches: where one bit masks the whole vector, it
selects between the address and an array on the stack (zeros for loads); a mask per lane uses LLVM's masked intrinsics,
which touch no memory in lanes that are off."""

from __future__ import annotations

import itertools

from tilewright.backends.cpu.rendering.addresses import Addresses
from tilewright.backends.cpu.rendering.emitter import Element
from tilewright.backends.cpu.rendering.instructions import constant, memory_type, of_lanes, overload, value_type
from tilewright.backends.cpu.rendering.prefetch import Prefetch, is_walked
from tilewright.backends.cpu.rendering.shuffles import MAX_STRIDE, interleave, load_strided, shuffle_mask
from tilewright.backends.cpu.rendering.strided_words import load_narrow
from tilewright.backends.cpu.rendering.values import Values
from tilewright.base.dtype import DType, dtypes
from tilewright.codegen.tiles import axis_size, tile_part, tile_value
from tilewright.graph.affine import affine
from tilewright.graph.ops import Ops
from tilewright.graph.records import Program
from tilewright.graph.uop import UOp, memory_of
from tilewright.graph.walk import toposort

# Bytes of the group of terms that one lane of a dot-product instruction takes.
GROUP_BYTES = 4
# The most elements between the first and the last of a vector that is shuffled out of a contiguous load.
MAX_SPAN = 64
# How many contiguous loads a vector may be shuffled out of, each of a span of its own; fewer are tried first.
SPAN_COUNTS = (1, 2, 4)
# Lengths of the groups of results that are interleaved in front of a store.
RESULT_GROUPS = (2, 4)
_FENCE = "  fence seq_cst"
LIKELY = "!2"
LIKELY_WEIGHTS = '!2 = !{!"branch_weights", i32 1048575, i32 1}'


class MemoryAccess(Addresses):
    def __init__(self, values: Values, program: Program) -> None:
        super().__init__(values, program)
        self._prefetch = Prefetch(program)
        self.line_bytes = program.target.line_bytes

    # ------------------------------------------------------------ loads

    def load(self, node: UOp) -> None:
        index, axis, lanes = node.src[0], self.facts.vector_axis(node), self.facts.lanes(node)
        stride = self.stride(index, axis)
        narrow = load_narrow(self, node, axis) if axis is not None and abs(stride or 0) > MAX_STRIDE else None
        if narrow is not None:
            self.values[node] = narrow
            return
        elements = {}
        for coordinates, at in self.values.elements(node):
            mask, varies = self.mask(index, at, axis)
            if stride in (1, -1):
                made = self._load_vector(index, at, axis, mask, varies, stride == -1)
            elif stride is not None and 1 < stride <= MAX_STRIDE:
                assert axis is not None
                made = self._load_strided(index, at, axis, mask, varies, stride)
            else:
                assert axis is not None
                positions = self._near_positions(index, at, axis) if mask is None else []
                made = self.load_span(index, positions) if positions else self._gather(index, at, axis, mask, varies)
            if node.dtype.is_bool:
                zero = constant(dtypes.uint8, 0, lanes)
                made = self.emitter.emit(f"icmp ne {of_lanes('i8', lanes)} {made.name}, {zero}")
            if len(node.src) > 1 and mask is not None:
                condition, other = (self.values.operand(given, at, axis) for given in (index.src[2], node.src[1]))
                made = self.emitter.emit(self.emitter.select(node.dtype, lanes, condition, made.name, other))
            elements[coordinates] = made
        self.values[node] = elements

    def _near_positions(self, index: UOp, at: dict[UOp, int], axis: UOp) -> list[int]:
        """Where the lanes of a vector lie, from the base of the tile on; none where they are not constants, or lie far
        apart, or where more than a few vectors would be loaded for one."""
        positions = self.lane_positions(index, at, axis)
        count = span_count(positions) if positions else 0
        if not count or sum(max(part) - min(part) + 1 for part in cut(positions, count)) > MAX_SPAN:
            return []
        return positions

    def lane_positions(self, index: UOp, at: dict[UOp, int], axis: UOp) -> list[int]:
        """Where the lanes of a vector lie, from the base of the tile on; none where they are not constants."""
        split = self.constant_position(index)
        lanes = [{**at, axis: lane} for lane in range(axis_size(axis))] if split is not None else []
        return [sum(tile_value(part, each) for part in (split or ())[1:]) for each in lanes]

    def load_span(self, index: UOp, positions: list[int]) -> Element:
        """Elements at constant positions: each span is loaded from its first to its last element, and shuffled."""
        split, kind = self.constant_position(index), memory_type(_memory_dtype(index.dtype))
        assert split is not None
        base = self.base_pointer(index, split[0])
        spans = cut(positions, span_count(positions))
        length = len(spans[0])
        names = [self._load_one_span(index, base, span) for span in spans]
        while len(names) > 1:
            order, have = shuffle_mask(range(2 * length)), of_lanes(kind, length)
            pairs = zip(names[::2], names[1::2])
            names = [self.emitter.assign(f"shufflevector {have} {one}, {have} {two}, {order}") for one, two in pairs]
            length *= 2
        return self.emitter.here(names[0])

    def _load_one_span(self, index: UOp, base: Element, positions: list[int]) -> str:
        dtype = _memory_dtype(index.dtype)
        first, span = min(positions), max(positions) - min(positions) + 1
        if (size := self._short_placeholder(index)) > 0:
            first, span = 0, size
        pointer = self.moved(base, memory_type(dtype), first)
        kind = of_lanes(memory_type(dtype), span)
        loaded = self.emitter.assign(f"load {kind}, ptr {pointer.name}, align {dtype.itemsize}")
        order = [position - first for position in positions]
        if order == list(range(len(order))):
            return loaded
        return self.emitter.assign(f"shufflevector {kind} {loaded}, {kind} poison, {shuffle_mask(order)}")

    def _short_placeholder(self, index: UOp) -> int:
        """The size of a placeholder at whose begin a tile stands, where it is short; else 0. It is loaded as a whole:
        LLVM then has it in registers, where it would load parts of it from memory."""
        split, memory = self.constant_position(index), memory_of(index)
        is_first = split is not None and split[0].is_const and split[0].arg == 0
        is_short = memory.op is not Ops.PARAM and memory.arg.size <= MAX_SPAN
        return memory.arg.size if is_first and is_short else 0

    def _load_vector(
        self, index: UOp, at: dict[UOp, int], axis: UOp | None, mask: str | None, varies: bool, is_reversed: bool
    ) -> Element:
        emitter, lanes, dtype = self.emitter, _lanes(axis), _memory_dtype(index.dtype)
        kind = of_lanes(memory_type(dtype), lanes)
        pointer = self.pointer(index, at, axis)
        if is_reversed:
            pointer = self.moved(pointer, memory_type(dtype), 1 - lanes)
        if mask is None or not varies:
            made = self._load(index, pointer, mask, lanes)
        else:
            if is_reversed:
                mask = self._reverse(of_lanes("i1", lanes), mask, lanes).name
            made = emitter.emit(self._masked_load(dtype, lanes, pointer.name, mask))
        return self._reverse(kind, made.name, lanes) if is_reversed else made

    def load_contiguous(self, index: UOp, at: dict[UOp, int], count: int) -> Element:
        """`count` elements from one on, along whatever axes they lie; one bit masks them all."""
        mask, _ = self.mask(index, at, None)
        return self._load(index, self.pointer(index, at), mask, count)

    def _load(self, index: UOp, pointer: Element, mask: str | None, lanes: int) -> Element:
        dtype = _memory_dtype(index.dtype)
        if mask is None:
            self._emit_prefetch(index, pointer, lanes * dtype.itemsize)
        else:
            pointer = self._or_zeros(pointer, mask, dtype.itemsize * max(lanes, 1))
        text = f"load {of_lanes(memory_type(dtype), lanes)}, ptr {pointer.name}, align {dtype.itemsize}"
        return self.emitter.emit(text)

    def _or_zeros(self, pointer: Element, mask: str, nbytes: int) -> Element:
        """The address, or that of zeros where the mask is off."""
        self.zeros_bytes = max(self.zeros_bytes, nbytes)
        return self.emitter.emit(f"select i1 {mask}, ptr {pointer.name}, ptr %zeros")

    def _load_strided(
        self, index: UOp, at: dict[UOp, int], axis: UOp, mask: str | None, varies: bool, stride: int
    ) -> Element:
        lanes, dtype = axis_size(axis), _memory_dtype(index.dtype)
        element = memory_type(dtype)
        first = self.pointer(index, at, axis)
        if mask is not None and not varies:
            first = self._or_zeros(first, mask, dtype.itemsize * lanes * stride)

        def load_at(start: int) -> str:
            pointer = self.moved(first, element, start).name
            if mask is None or not varies:
                return self.emitter.assign(f"load {of_lanes(element, lanes)}, ptr {pointer}, align {dtype.itemsize}")
            # Elements between those that are asked for are not touched.
            bits = of_lanes("i1", lanes)
            order = [place // stride if place % stride == 0 else lanes for place in range(start, start + lanes)]
            own = self.emitter.assign(f"shufflevector {bits} {mask}, {bits} zeroinitializer, {shuffle_mask(order)}")
            return self.emitter.assign(self._masked_load(dtype, lanes, pointer, own))

        return self.emitter.here(load_strided(self.emitter.assign, load_at, element, lanes, stride))

    def _masked_load(self, dtype: DType, lanes: int, pointer: str, mask: str) -> str:
        kind = of_lanes(memory_type(dtype), lanes)
        return self.emitter.call(
            f"llvm.masked.load.{overload(dtype, lanes)}.p0",
            kind,
            ("ptr", pointer),
            ("i32", str(dtype.itemsize)),
            (of_lanes("i1", lanes), mask),
            (kind, "zeroinitializer"),
        )

    def _emit_prefetch(self, index: UOp, pointer: Element, row_bytes: int) -> None:
        """Prefetches the lines that are loaded soon. A prefetch past the end of the buffer is harmless."""
        distance = self._prefetch.bytes_ahead(index, row_bytes, self.emitter.loops)
        for line in range(0, row_bytes if distance else 0, self.line_bytes):
            ahead = self.moved(pointer, "i8", distance + line)
            read, keep, data = ("i32", "0"), ("i32", "3"), ("i32", "1")
            self.emitter.line(
                f"  {self.emitter.call('llvm.prefetch.p0', 'void', ('ptr', ahead.name), read, keep, data)}"
            )

    def _reverse(self, kind: str, name: str, lanes: int) -> Element:
        order = shuffle_mask(range(lanes - 1, -1, -1))
        return self.emitter.emit(f"shufflevector {kind} {name}, {kind} poison, {order}")

    def _gather(self, index: UOp, at: dict[UOp, int], axis: UOp, mask: str | None, varies: bool) -> Element:
        lanes, dtype = axis_size(axis), _memory_dtype(index.dtype)
        kind = of_lanes(memory_type(dtype), lanes)
        if mask is not None and not varies:
            mask = self.values.operand(index.src[2], at, axis)
        call = self.emitter.call(
            f"llvm.masked.gather.{overload(dtype, lanes)}.v{lanes}p0",
            kind,
            (f"<{lanes} x ptr>", self.pointers(index, at, axis, mask)),
            ("i32", str(dtype.itemsize)),
            (of_lanes("i1", lanes), mask or "splat (i1 true)"),
            (kind, "zeroinitializer"),
        )
        return self.emitter.emit(call)

    # ------------------------------------------------------------ stores

    def store(self, node: UOp) -> None:
        group = self._find_group(node)
        if group is not None:
            self._store_groups(node, group)
            return
        index, value = node.src
        emitter, axis, lanes = self.emitter, self.facts.vector_axis(node), self.facts.lanes(node)
        stride = self.stride(index, axis)
        rows: list[tuple[str, str]] = []
        for _, at in self.values.elements(node):
            mask, varies = self.mask(index, at, axis)
            name = self.values.operand(value, at, axis)
            if value.dtype.is_bool:
                name = emitter.assign(f"zext {value_type(value.dtype, lanes)} {name} to {of_lanes('i8', lanes)}")
            if stride != 1:
                assert axis is not None
                self._scatter(index, at, axis, name, mask, varies)
            elif mask is None:
                rows.append((name, self.pointer(index, at, axis).name))
            else:
                self._store_masked(index, at, axis, name, mask, varies)
        self._store_rows(index, axis, rows)

    def _store_rows(self, index: UOp, axis: UOp | None, rows: list[tuple[str, str]]) -> None:
        """Non-temporal stores must be aligned: where the buffer that the program is given is not, which is one bit for
        all rows, they are ordinary stores."""
        emitter, dtype, lanes = self.emitter, _memory_dtype(index.dtype), _lanes(axis)
        kind = of_lanes(memory_type(dtype), lanes)
        texts = [f"  store {kind} {name}, ptr {pointer}, align " for name, pointer in rows]
        if not rows or not self._bypasses_cache(index, axis, max(lanes, 1) * dtype.itemsize):
            for text in texts:
                emitter.line(f"{text}{dtype.itemsize}")
            return
        is_aligned = self._is_aligned(index)
        label = emitter.fresh("rows")
        emitter.line(f"  br i1 {is_aligned}, label %{label}.aligned, label %{label}.any")
        for name, ending in (("aligned", f"{self.line_bytes}, !nontemporal !0"), ("any", str(dtype.itemsize))):
            emitter.line(f"{label}.{name}:")
            for text in texts:
                emitter.line(f"{text}{ending}")
            emitter.line(f"  br label %{label}.done")
        emitter.begin_block(f"{label}.done")

    def _bypasses_cache(self, index: UOp, axis: UOp | None, row_bytes: int) -> bool:
        """Whether a store writes whole cache lines at a large stride, to a buffer that no cache holds: an ordinary
        store would fetch each line first. Where a loop writes contiguous lines the processor prefetches them, and
        ordinary stores are as fast."""
        buffer = memory_of(index)
        is_only_written = buffer.op is Ops.PARAM and not any(
            param.is_read for param in self.program.params if param.slot == buffer.arg.slot
        )
        if not is_only_written or row_bytes % self.line_bytes or is_walked(index, row_bytes, self.emitter.loops):
            return False
        itemsize = _memory_dtype(index.dtype).itemsize
        position = affine(index.src[1])
        strides = [position.constant, *(step for atom, step in position.terms.items() if atom is not axis)]
        is_large = buffer.arg.size * itemsize >= self.program.target.cache_bytes
        return is_large and all(stride * itemsize % self.line_bytes == 0 for stride in strides)

    def _is_aligned(self, index: UOp) -> str:
        """Whether a buffer starts at a cache line, tested on entry. Non-temporal stores are not ordered with later
        accesses, so the program ends with a fence."""
        emitter, buffer = self.emitter, self.buffer(index)
        key = (f"{buffer.name} aligned", 0)
        if key not in emitter.reused:
            address = emitter.emit(f"ptrtoint ptr {buffer.name} to i64", 0)
            rest = emitter.emit(f"and i64 {address.name}, {self.line_bytes - 1}", 0)
            emitter.declarations["!0"] = "!0 = !{i32 1}"
            if _FENCE not in self.releases:
                self.releases.append(_FENCE)
            emitter.once(key, f"icmp eq i64 {rest.name}, 0", 0)
        return emitter.reused[key].name

    def _store_masked(
        self, index: UOp, at: dict[UOp, int], axis: UOp | None, name: str, mask: str, varies: bool
    ) -> None:
        emitter, lanes, dtype = self.emitter, _lanes(axis), _memory_dtype(index.dtype)
        kind = of_lanes(memory_type(dtype), lanes)
        pointer = self.pointer(index, at, axis).name
        if varies:
            text = emitter.call(
                f"llvm.masked.store.{overload(dtype, lanes)}.p0",
                "void",
                (kind, name),
                ("ptr", pointer),
                ("i32", str(dtype.itemsize)),
                (of_lanes("i1", lanes), mask),
            )
            emitter.line(f"  {text}")
            return
        if not lanes and _is_indirect(index):
            self._store_if(f"{kind} {name}, ptr {pointer}, align {dtype.itemsize}", mask)
            return
        self.trash_bytes = max(self.trash_bytes, dtype.itemsize * max(lanes, 1))
        pointer = emitter.assign(f"select i1 {mask}, ptr {pointer}, ptr %trash")
        emitter.line(f"  store {kind} {name}, ptr {pointer}, align {dtype.itemsize}")

    def _store_if(self, stored: str, mask: str) -> None:
        """A store to a computed index, in a block of its own: nearly every index is in range, and a branch that is
        predicted lets later iterations begin, where a selected address makes them wait for the mask."""
        emitter, label = self.emitter, self.emitter.fresh("put")
        emitter.declarations[LIKELY] = LIKELY_WEIGHTS
        emitter.line(f"  br i1 {mask}, label %{label}.inside, label %{label}.done, !prof {LIKELY}")
        emitter.begin_block(f"{label}.inside")
        emitter.line(f"  store {stored}")
        emitter.line(f"  br label %{label}.done")
        emitter.begin_block(f"{label}.done")

    def _scatter(self, index: UOp, at: dict[UOp, int], axis: UOp, name: str, mask: str | None, varies: bool) -> None:
        lanes, dtype = axis_size(axis), _memory_dtype(index.dtype)
        if mask is not None and not varies:
            mask = self.values.operand(index.src[2], at, axis)
        text = self.emitter.call(
            f"llvm.masked.scatter.{overload(dtype, lanes)}.v{lanes}p0",
            "void",
            (of_lanes(memory_type(dtype), lanes), name),
            (f"<{lanes} x ptr>", self.pointers(index, at, axis, mask)),
            ("i32", str(dtype.itemsize)),
            (of_lanes("i1", lanes), mask or "splat (i1 true)"),
        )
        self.emitter.line(f"  {text}")

    # ------------------------------------------------------------ interleaved stores

    def _find_group(self, store: UOp) -> UOp | None:
        """The axis of short groups that a store writes contiguously, where the lanes of its value are one group apart:
        a packed panel, or results that are computed as separate vectors."""
        index, value = store.src
        base, steps = tile_part(index.src[1])
        lanes = self.facts.vector_axis(value)
        if lanes is None or len(index.src) > 2 or (base is not None and self.facts.axes(base)):
            return None
        sizes: tuple[int, ...] = ()
        if memory_of(index).op is Ops.DEFINE_LOCAL and value.dtype.is_int:
            sizes = (GROUP_BYTES // value.dtype.itemsize,)
        elif memory_of(index).op is Ops.PARAM and not value.dtype.is_bool:
            sizes = RESULT_GROUPS
        for axis, step in steps.items():
            if step == 1 and steps.get(lanes) == axis_size(axis) and axis_size(axis) in sizes:
                return axis
        return None

    def _store_groups(self, store: UOp, group: UOp) -> None:
        """Interleaves the vectors of a group, and stores them as one."""
        emitter, (index, value) = self.emitter, store.src
        lanes = self.facts.vector_axis(value)
        assert lanes is not None
        axes = [axis for axis in self.facts.axes(store) if axis not in (lanes, group)]
        bits, count = value.dtype.bits, axis_size(lanes)
        kind = of_lanes(f"i{bits}", count * axis_size(group))
        for coordinates in itertools.product(*(range(axis_size(axis)) for axis in axes)):
            at = {**dict(zip(axes, coordinates, strict=True)), lanes: 0}
            rows = [self.values.operand(value, {**at, group: term}, lanes) for term in range(axis_size(group))]
            if value.dtype.is_float:
                given, wanted = value_type(value.dtype, count), of_lanes(f"i{bits}", count)
                rows = [emitter.assign(f"bitcast {given} {row} to {wanted}") for row in rows]
            name = interleave(emitter.assign, bits, rows, count)
            pointer = self.pointer(index, {**at, group: 0}).name
            emitter.line(f"  store {kind} {name}, ptr {pointer}, align {value.dtype.itemsize}")


def _is_indirect(index: UOp) -> bool:
    """Whether a position is computed from memory."""
    return any(node.op is Ops.LOAD for node in toposort(index.src[1]))


def span_count(positions: list[int]) -> int:
    """Into how many equal parts a vector is split so that the elements of each lie within MAX_SPAN; 0 where no count in
    SPAN_COUNTS is enough."""
    for count in SPAN_COUNTS:
        is_even = len(positions) % count == 0
        if is_even and all(max(part) - min(part) < MAX_SPAN for part in cut(positions, count)):
            return count
    return 0


def cut(positions: list[int], count: int) -> list[list[int]]:
    """Positions in `count` equal parts."""
    length = len(positions) // count
    return [positions[start : start + length] for start in range(0, len(positions), length)]


def _lanes(axis: UOp | None) -> int:
    return 0 if axis is None else axis_size(axis)


def _memory_dtype(dtype: DType) -> DType:
    return dtypes.uint8 if dtype.is_bool else dtype
