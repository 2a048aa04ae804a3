"""Stores of tiles; `loads` has the loads. In: STORE nodes. Out: text.

Along the vector axis a stride of 1 is a vector store, any other a scatter; short groups are interleaved into one
vector. A masked store selects between the address and an array on the stack; a mask per lane uses LLVM's masked
intrinsics; a single element at a computed index is stored in a conditional block."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from tilewright.backends.cpu.rendering.addresses import lane_count
from tilewright.backends.cpu.rendering.instructions import memory_type, of_lanes, overload, value_type
from tilewright.backends.cpu.rendering.loads import Loads
from tilewright.backends.cpu.rendering.masked_functions import StackStore, masked_call, store_from_stack
from tilewright.backends.cpu.rendering.partial_vectors import PartialStore
from tilewright.backends.cpu.rendering.prefetch import is_walked
from tilewright.backends.cpu.rendering.shuffles import interleave
from tilewright.base.dtype import DType
from tilewright.codegen.tiles import memory_dtype, tile_part
from tilewright.graph.affine import affine
from tilewright.graph.ops import Ops
from tilewright.graph.uop import UOp, memory_of
from tilewright.graph.walk import size_of, toposort

# Bytes of the group of terms that one lane of a dot-product instruction takes.
GROUP_BYTES = 4
# Lengths of the groups of results that are interleaved before a store.
RESULT_GROUPS = tuple(range(2, 9))
_FENCE = "  fence seq_cst"
LIKELY = "!2"
LIKELY_WEIGHTS = '!2 = !{!"branch_weights", i32 1048575, i32 1}'


class MemoryAccess(Loads):
    def store(self, node: UOp) -> None:
        group = self._find_group(node)
        if group is not None:
            self._store_groups(node, group)
            return
        index, value = node.src
        emitter, axis, lanes = self.emitter, self.facts.vector_axis(node), self.facts.lanes(node)
        stride = self.stride(index, axis)
        rows: list[tuple[str, str]] = []
        partial: list[PartialStore] = []
        for _, at in self.values.elements(node):
            mask, varies = (None, False) if index in self.holding else self.mask(index, at, axis)
            name = self.values.operand(value, at, axis)
            if value.dtype.is_bool:
                name = emitter.assign(f"zext {value_type(value.dtype, lanes)} {name} to {of_lanes('i8', lanes)}")
            if stride != 1:
                assert axis is not None
                self._scatter(index, at, axis, name, mask, varies)
            elif mask is None:
                rows.append((name, self.pointer(index, at, axis).name))
            else:
                made = self._store_masked(index, at, axis, name, mask, varies, len(partial))
                partial += [made] if made is not None else []
        self._store_rows(index, axis, rows)
        if partial:
            self.partial.store(partial)

    def _store_rows(self, index: UOp, axis: UOp | None, rows: list[tuple[str, str]]) -> None:
        """Non-temporal stores must be aligned. Where the given buffer is not, which one test decides for all rows, they
        are ordinary stores."""
        emitter, dtype, lanes = self.emitter, memory_dtype(index.dtype), lane_count(axis)
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
        itemsize = memory_dtype(index.dtype).itemsize
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
        self, index: UOp, at: dict[UOp, int], axis: UOp | None, name: str, mask: str, varies: bool, number: int
    ) -> PartialStore | None:
        """Emits a masked store, or returns one that needs a branch: `number` is its place among those of the tile."""
        emitter, lanes, dtype = self.emitter, lane_count(axis), memory_dtype(index.dtype)
        kind = of_lanes(memory_type(dtype), lanes)
        stored = f"store {kind} {name}, ptr {{}}, align {dtype.itemsize}".format
        whole = None
        if varies:
            assert axis is not None
            is_shared, whole = self.shares_function(index, axis, Ops.STORE), self.whole(index, at, axis)
            if whole is not None and is_shared:
                self.partial.vector_bytes = max(self.partial.vector_bytes, (number + 1) * dtype.itemsize * lanes)
                masked = store_from_stack(emitter, dtype, lanes, name, mask, number)
            else:
                masked = StackStore((), self._masked_store(dtype, lanes, name, mask, is_shared))
        if whole is not None:
            return PartialStore(lambda: self.pointer(index, at, axis).name, stored, masked, whole)
        pointer = self.pointer(index, at, axis).name
        if varies:
            emitter.line(f"  {masked.call_to(pointer)}")
            return None
        if not lanes and any(node.op is Ops.LOAD for node in toposort(index.src[1])):
            self._store_if(stored(pointer), mask)
            return None
        self.trash_bytes = max(self.trash_bytes, dtype.itemsize * max(lanes, 1))
        pointer = emitter.assign(f"select i1 {mask}, ptr {pointer}, ptr %trash")
        emitter.line(f"  {stored(pointer)}")
        return None

    def _masked_store(self, dtype: DType, lanes: int, name: str, mask: str, is_shared: bool) -> Callable[[str], str]:
        """The text of a masked store of a vector in a register, to an address."""
        function = f"llvm.masked.store.{overload(dtype, lanes)}.p0"
        vector, bits = (of_lanes(memory_type(dtype), lanes), name), (of_lanes("i1", lanes), mask)

        def call_to(pointer: str) -> str:
            given = (vector, ("ptr", pointer), ("i32", str(dtype.itemsize)), bits)
            return masked_call(self.emitter, function, "void", given, is_shared)

        return call_to

    def _store_if(self, stored: str, mask: str) -> None:
        """A store to a computed index, in a separate block: nearly every index is in range, and with a predicted branch
        later iterations can begin, while a selected address would make them wait for the mask."""
        emitter, label = self.emitter, self.emitter.fresh("put")
        emitter.declarations[LIKELY] = LIKELY_WEIGHTS
        emitter.line(f"  br i1 {mask}, label %{label}.inside, label %{label}.done, !prof {LIKELY}")
        emitter.begin_block(f"{label}.inside")
        emitter.line(f"  {stored}")
        emitter.line(f"  br label %{label}.done")
        emitter.begin_block(f"{label}.done")

    def _scatter(self, index: UOp, at: dict[UOp, int], axis: UOp, name: str, mask: str | None, varies: bool) -> None:
        lanes, dtype = size_of(axis), memory_dtype(index.dtype)
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
            if step == 1 and steps.get(lanes) == size_of(axis) and size_of(axis) in sizes:
                return axis
        return None

    def _store_groups(self, store: UOp, group: UOp) -> None:
        """Interleaves the vectors of a group, and stores them as one."""
        emitter, (index, value) = self.emitter, store.src
        lanes = self.facts.vector_axis(value)
        assert lanes is not None
        axes = [axis for axis in self.facts.axes(store) if axis not in (lanes, group)]
        bits, count = value.dtype.bits, size_of(lanes)
        kind = of_lanes(f"i{bits}", count * size_of(group))
        for coordinates in itertools.product(*(range(size_of(axis)) for axis in axes)):
            at = {**dict(zip(axes, coordinates, strict=True)), lanes: 0}
            rows = [self.values.operand(value, {**at, group: term}, lanes) for term in range(size_of(group))]
            if value.dtype.is_float:
                given, wanted = value_type(value.dtype, count), of_lanes(f"i{bits}", count)
                rows = [emitter.assign(f"bitcast {given} {row} to {wanted}") for row in rows]
            name = interleave(emitter.assign, bits, rows, count)
            pointer = self.pointer(index, {**at, group: 0}).name
            emitter.line(f"  store {kind} {name}, ptr {pointer}, align {value.dtype.itemsize}")
