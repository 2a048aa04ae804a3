"""Masked loads and stores for processors without such instructions. In: the vectors of a tile, each with its mask. Out:
text.

One branch decides for all vectors of a tile. Where every mask holds in all lanes (`whole_vectors`), they are plain
loads or stores. Otherwise a load reads all lanes and clears those that are masked off. A load that would cross the end
of its buffer, and any other store, is LLVM's masked intrinsic, which tests and moves each lane."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.backends.cpu.rendering.emitter import Element
from tilewright.backends.cpu.rendering.masked_functions import StackStore
from tilewright.backends.cpu.rendering.values import Values
from tilewright.backends.cpu.rendering.whole_vectors import Condition, all_hold, branch
from tilewright.base.records import NamedTuple


class Lanes(NamedTuple):
    """The mask of a vector. `bit` masks all lanes together, and is empty where nothing does; `kept` is a vector of
    `size` words of `bits` bits, all ones in the lanes that are kept and zero in the others."""

    bit: str
    kept: str
    bits: int
    size: int

    @property
    def kind(self) -> str:
        """The type of the words."""
        return f"<{self.size} x i{self.bits}>"


class PartialLoad(NamedTuple):
    """A masked load of a vector at a stride. `load` emits it without a mask, from a pointer; `masked` emits it lane by
    lane, under the mask that it is given or, where that is empty, under its own."""

    kind: str
    first: Element
    load: Callable[[Element], str]
    masked: Callable[[str], str]
    lanes: Lanes
    stride: int
    whole: list[Condition]
    inside: Condition | None


class PartialStore(NamedTuple):
    """A masked store of a vector. `address` emits its address, `plain_to` is its text without the mask. Each block of
    the branch has addresses of its own: those of the rows of a tile are few registers where plain stores add constants
    to them, and one for each vector where calls are given them."""

    address: Callable[[], str]
    plain_to: Callable[[str], str]
    masked: StackStore
    whole: list[Condition]


class PartialVectors:
    """Emits the masked accesses of a function; `zeros_bytes` is the size of the zeros on the stack that they read, and
    `vector_bytes` that of the vectors which are stored from the stack."""

    def __init__(self, values: Values) -> None:
        self.values = values
        self.emitter = values.emitter
        self.zeros_bytes = 0
        self.vector_bytes = 0

    def or_zeros(self, pointer: Element, mask: str, nbytes: int) -> Element:
        """The address, or that of zeros on the stack where the mask is off."""
        self.zeros_bytes = max(self.zeros_bytes, nbytes)
        return self.emitter.emit(f"select i1 {mask}, ptr {pointer.name}, ptr %zeros")

    # ------------------------------------------------------------ loads

    def load(self, loads: Sequence[PartialLoad]) -> list[str]:
        """The vectors of a tile."""
        whole = all_hold(self.values, [condition for load in loads for condition in load.whole])
        insides = [load.inside for load in loads if load.inside is not None]
        # Computed before the branch, so that it can reuse names that the first condition defines there.
        inside = all_hold(self.values, insides) if len(insides) == len(loads) else None

        def load_whole() -> list[str]:
            return [load.load(load.first) for load in loads]

        def load_kept() -> list[str]:
            return [self._load_kept(load) for load in loads]

        def load_rest() -> list[str]:
            return [load.masked(self._bits(load.lanes)) for load in loads]

        def load_part() -> list[str]:
            if inside is None:
                return [load.masked("") for load in loads]
            return self._merged(loads, branch(self.values, inside, load_kept, load_rest))

        return self._merged(loads, branch(self.values, whole, load_whole, load_part))

    def _merged(self, loads: Sequence[PartialLoad], found: tuple[list[str], str, list[str], str]) -> list[str]:
        """The phis that join the vectors of the two blocks of a branch."""
        ones, first, others, second = found
        rows = zip(loads, ones, others, strict=True)
        texts = [f"phi {load.kind} [ {one}, {first} ], [ {other}, {second} ]" for load, one, other in rows]
        return [self.emitter.assign(text) for text in texts]

    def _bits(self, lanes: Lanes) -> str:
        """The mask as a bit per lane, computed in the unlikely block from the words that the likely one uses."""
        bits, kind = self.emitter.assign(f"icmp ne {lanes.kind} {lanes.kept}, zeroinitializer"), f"<{lanes.size} x i1>"
        text = f"select i1 {lanes.bit}, {kind} {bits}, {kind} zeroinitializer"
        return self.emitter.assign(text) if lanes.bit else bits

    def _load_kept(self, load: PartialLoad) -> str:
        """Reads all lanes, and clears those that are masked off."""
        emitter, lanes = self.emitter, load.lanes
        span = lanes.size * lanes.bits // 8 * load.stride
        name = load.load(self.or_zeros(load.first, lanes.bit, span) if lanes.bit else load.first)
        if load.kind == lanes.kind:
            return emitter.assign(f"and {lanes.kind} {name}, {lanes.kept}")
        name = emitter.assign(f"bitcast {load.kind} {name} to {lanes.kind}")
        name = emitter.assign(f"and {lanes.kind} {name}, {lanes.kept}")
        return emitter.assign(f"bitcast {lanes.kind} {name} to {load.kind}")

    # ------------------------------------------------------------ stores

    def store(self, stores: Sequence[PartialStore]) -> None:
        """The vectors of a tile."""

        def store_whole() -> None:
            for store in stores:
                self.emitter.line(f"  {store.plain_to(store.address())}")

        def store_part() -> None:
            for spill in (spill for store in stores for spill in store.masked.spills):
                self.emitter.line(f"  {spill}")
            for store in stores:
                self.emitter.line(f"  {store.masked.call_to(store.address())}")

        whole = all_hold(self.values, [condition for store in stores for condition in store.whole])
        branch(self.values, whole, store_whole, store_part)
