"""The keys and values of earlier tokens. In: keys and values of new tokens and their positions. Out: those of all
tokens that may be attended to. Memory is allocated once; new tokens are written into it in place: at a slice for one
position of the whole batch, by a kernel where every row of the batch has its own position."""

from __future__ import annotations

from tilewright.base.dtype import DType, dtypes
from tilewright.base.errors import ShapeError
from tilewright.graph.records import KernelInfo
from tilewright.graph.spec import Devices
from tilewright.graph.uop import UOp
from tilewright.tensor.tensor import Tensor

Position = int | UOp | Tensor


class Cache:
    """For each layer keys and values, (batch, heads, length, features). `layers` has a pair of shapes (heads, features)
    for each layer."""

    def __init__(
        self,
        layers: list[tuple[tuple[int, int], ...]],
        batch: int,
        length: int,
        dtype: DType = dtypes.float32,
        device: Devices | None = None,
        *,
        clear: bool = True,
    ) -> None:
        """`clear=False` leaves memory uninitialised, for calls that attend only to written tokens: pages that are never
        written are then not allocated by the system."""
        if batch < 1 or length < 1:
            raise ShapeError("make_cache", f"the cache has {batch} rows of {length} tokens", "give positive numbers")
        self.batch = batch
        self.length = length
        self.layers: list[list[Tensor]] = []
        for shapes in layers:
            shaped = [(batch, heads, length, size) for heads, size in shapes]
            self.layers.append([_memory(shape, dtype, device, clear) for shape in shaped])
        first, *others = (tensor for held in self.layers for tensor in held)
        first.realize(*others)

    def nbytes(self) -> int:
        """Bytes of all keys and values."""
        return sum(tensor.nbytes() for layer in self.layers for tensor in layer)

    def store(self, layer: int, new: tuple[Tensor, ...], position: Position) -> list[Tensor]:
        """Writes new tokens (batch, heads, time, features) from `position` on. Returns the tokens up to the last of
        them, or all memory where each row has its own position."""
        held = self.layers[layer]
        for memory, value in zip(held, new, strict=True):
            self._write(memory, value.cast(memory.dtype), position)
        if isinstance(position, Tensor):
            return held
        end = position + new[0].shape[2]
        return [memory[:, :, :end] for memory in held]

    def _write(self, memory: Tensor, value: Tensor, position: Position) -> None:
        if isinstance(position, Tensor):
            placed = value if isinstance(memory.device, str) else value.shard_like(memory)
            memory.assign(Tensor.custom_kernel(memory, placed, position, fxn=store_rows)[0])
        else:
            memory[:, :, position : position + value.shape[2]] = value


def _memory(shape: tuple[int, ...], dtype: DType, device: Devices | None, clear: bool) -> Tensor:
    """Memory for keys or values. Where a call reads more than was written, it is cleared: a weight of 0 times a value
    that was never written must be 0. On several devices it is divided by heads, as keys and values are, where their
    number is a multiple of that of devices."""
    if device is None or isinstance(device, str):
        memory = Tensor.empty(*shape, dtype=dtype, device=device)
    else:
        memory = Tensor.empty(*shape, dtype=dtype).shard(device, 1 if shape[1] % len(device) == 0 else None)
    return memory.assign(0.0) if clear else memory


def store_rows(memory: UOp, value: UOp, position: UOp, first: int = 0) -> UOp:
    """A kernel that writes the tokens of each row at the row's own position, in the rows of memory from `first` on."""
    row, head, time, feature = (UOp.range(size, number) for number, size in enumerate(value.shape))
    target = memory[row + first, head, position[row] + time, feature]
    written = target.set(value[row, head, time, feature], end=(row, head, time, feature))
    return written.sink(arg=KernelInfo("store_rows"))


def copy_tokens(memory: UOp, places: UOp, count: int) -> UOp:
    """A kernel that copies `count` tokens of one row of memory to another; `places` are the row that is read, the row
    that is written and the position of the first token in both."""
    head, time, feature = (
        UOp.range(size, number) for number, size in enumerate((memory.shape[1], count, memory.shape[3]))
    )
    source, target, position = (places[number] for number in range(3))
    value = memory[source, head, position + time, feature]
    written = memory[target, head, position + time, feature].set(value, end=(head, time, feature))
    return written.sink(arg=KernelInfo("copy_tokens"))
