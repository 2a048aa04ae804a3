"""From a lazy tensor to memory and on to the host. In: tensors. Out: buffers, NumPy arrays, Python numbers.
What leaves here is a copy or, for `data`, a view of the tensor's own memory. Reading numbers does not need NumPy."""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar

from tilewright.base.dtype import DType, dtypes, to_dtype
from tilewright.base.errors import RealizeError, ShapeError
from tilewright.engine.memory import live
from tilewright.graph import build, marks
from tilewright.graph.ops import Ops
from tilewright.graph.sizes import present_shape, present_size
from tilewright.graph.spec import Devices, Shape
from tilewright.graph.uop import UOp
from tilewright.runtime.access import read_contents
from tilewright.runtime.buffer import Buffer, buffer_of
from tilewright.runtime.device import synchronize
from tilewright.tensor.core.base import TensorBase, check_tensors
from tilewright.tensor.core.checks import check_axis
from tilewright.tensor.core.convert import decode, nest
from tilewright.tensor.core.memory import first_device, in_memory, stored_value

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tilewright.graph.records import Schedule

R = TypeVar("R")


_VIEWS = (Ops.PAD, Ops.SHRINK, Ops.FLIP, Ops.PERMUTE, Ops.EXPAND, Ops.RESHAPE, Ops.DETACH)


def reads_memory(node: UOp) -> bool:
    """Whether anything below the node has a device, and is not a constant or an IOTA."""
    first = node
    while first.src:  # the first operand of an expression mostly leads to memory
        first = first.src[0]
    if first.op is Ops.BUFFER:
        return True
    stack, seen = [node], {node}
    while stack:
        top = stack.pop()
        if top.op in (Ops.BUFFER, Ops.PARAM, Ops.COPY):
            return True
        fresh = [src for src in top.src if src not in seen]
        seen.update(fresh)
        stack.extend(fresh)
    return False


def locate_element(node: UOp) -> tuple[UOp, int] | None:
    """The BUFFER and the number of the element in it that a view of one element shows; None where the element is not
    in memory, or is padding."""
    from tilewright.engine.memory.parts import held_buffer

    index = [0] * len(node.shape)
    while (held := held_buffer(node)) is None:
        if node.op not in _VIEWS:
            return None
        source = node.src[0]
        if node.op is Ops.PAD:
            index = [i - before for i, (before, _) in zip(index, node.arg)]
            if any(not 0 <= i < size for i, size in zip(index, source.shape)):
                return None
        elif node.op is Ops.SHRINK:
            index = [i + start for i, (start, _) in zip(index, node.arg)]
        elif node.op is Ops.FLIP:
            index = [source.shape[k] - 1 - i if k in node.arg else i for k, i in enumerate(index)]
        elif node.op is Ops.PERMUTE:
            index = [i for _, i in sorted(zip(node.arg, index))]
        elif node.op is Ops.EXPAND:
            index = [0 if size == 1 else i for i, size in zip(index, source.shape)]
        elif node.op is Ops.RESHAPE:
            index = _unravelled(_ravelled(index, node.shape), source.shape)
        node = source
    return (held, _ravelled(index, node.shape)) if held.op is Ops.BUFFER else None


def _ravelled(index: list[int], shape: Shape) -> int:
    number = 0
    for i, size in zip(index, shape):
        number = number * size + i
    return number


def _unravelled(number: int, shape: Shape) -> list[int]:
    index = []
    for size in reversed(shape):
        number, i = divmod(number, size)
        index.append(i)
    return index[::-1]


@functools.cache
def _realizer() -> Callable[[Sequence[UOp], str], list[UOp]]:
    """The engine, which importing the package does without; once it is there, a small run would notice an import."""
    from tilewright.engine.execution.realize import realize

    return realize


class StorageMixin(TensorBase):
    """realize, numpy, tolist, item, data, and what can be said of a tensor without computing it."""

    # ------------------------------------------------------------ computing

    def realize(self, *lst: Self, do_update_stats: bool = True) -> Self:
        """Computes this tensor and the others now, together."""
        del do_update_stats  # every kernel is counted
        check_tensors("realize", self, *lst)
        by_device: dict[Devices, list[Self]] = {}
        for tensor in (self, *lst):
            if not in_memory(tensor.uop) and tensor.numel():
                if not reads_memory(tensor.uop):
                    with live.exchanging:  # of two threads, one
                        if not reads_memory(tensor.uop):
                            tensor._give_memory()
                by_device.setdefault(tensor.device, []).append(tensor)
        for device, tensors in by_device.items():
            nodes = [tensor.uop for tensor in tensors]
            try:
                buffers = _realizer()(nodes, first_device(device))
            except RealizeError:
                # Another thread has replaced a tensor since, and then ran what updates the memory of its old node.
                if all(tensor.uop is node for tensor, node in zip(tensors, nodes)):
                    raise
                return self.realize(*lst)
            owners = dict(zip(reversed(buffers), reversed(nodes))) if len(nodes) > 1 else {buffers[0]: nodes[0]}
            for tensor, node, buffer in zip(tensors, nodes, buffers):
                # History is needed by gradients alone; without it the nodes below can be freed. Gradients end at a
                # parameter, whatever it was computed from. Of equal expressions that were computed together, and so
                # once, one becomes the memory and the others stay what they are: nodes of their own.
                if (not tensor.requires_grad or tensor._is_parameter) and owners[buffer] is node:
                    live.exchange(tensor, node, build.reshape(stored_value(node, buffer), node.shape))
        return self

    def schedule(self, *others: Self) -> Schedule:
        """The items that `realize` would run for this tensor and the others."""
        from tilewright.engine.execution.realize import schedule

        check_tensors("schedule", self, *others)
        return schedule([tensor.uop for tensor in (self, *others)], first_device(self.device))

    def synchronize(self) -> Self:
        """Waits until the device has finished."""
        synchronize(self.device)
        return self

    # ------------------------------------------------------------ reading

    def _stored_node(self) -> UOp:
        """The BUFFER that holds this tensor, row by row; what is on several devices is gathered on the first. Whoever
        keeps the node keeps the value: an update by another thread leaves it alone."""
        if not isinstance(self.device, str):
            self.realize()  # where it is: the gathered copy alone would leave its own memory as it was
            gathered = build.copy(marks.detach(self.uop), self.device[0])
            return type(self)._from_uop(gathered, self.device[0])._stored_node()
        while True:
            self.realize()
            node = self.uop
            root = build.stored_root(node)
            if root.op is Ops.BUFFER:
                return root
            from tilewright.engine.memory.parts import held_buffer

            held = held_buffer(node)
            if held is not None:  # else another thread has assigned to it since
                return held

    def _read(self, read: Callable[[memoryview], R]) -> R:
        """What `read` makes of the bytes of this tensor, which nobody overwrites meanwhile."""
        if self.numel() == 0:
            return read(memoryview(b""))
        return read_contents(self._stored_node(), lambda buffer: read(self._bytes_in(buffer)))

    def _host_view(self) -> memoryview:
        """The bytes of this tensor: of its own memory, where the host sees that."""
        if self.numel() == 0:
            return memoryview(b"")
        return self._bytes_in(self._buffer())

    def _buffer(self) -> Buffer:
        """The memory that holds this tensor."""
        return buffer_of(self._stored_node())

    def _bytes_in(self, buffer: Buffer) -> memoryview:
        buffer.ensure()
        return buffer.view().cast("B")[: present_size(self.nbytes())]

    def numpy(self) -> NDArray[Any]:
        """A NumPy array of its own memory with the values this tensor has now."""
        import numpy

        if self.dtype.code:
            dtype = numpy.dtype(self.dtype.name)
        else:
            from tilewright.graph.interpreter.numpy_math import numpy_dtype

            dtype = numpy_dtype(self.dtype)
        raw = numpy.empty(present_size(self.nbytes()), dtype=numpy.uint8)
        if raw.size:
            read_contents(self._stored_node(), lambda buffer: buffer.read_into(raw.data))
        return raw.view(dtype).reshape(present_shape(self.shape))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError("the elements of a tensor come as a copy: leave out copy=False, or use numpy.from_dlpack")
        values = self.numpy()
        return values if dtype is None else values.astype(dtype)

    def data(self) -> memoryview:
        """The tensor's memory, typed and shaped: without a copy where it is host memory. bfloat16 and float8 show
        their bits."""
        view = self._host_view()
        code = self.dtype.code or ("B" if self.dtype.itemsize == 1 else "H")
        if self.numel() == 0 or (self.dtype is dtypes.float16 and sys.version_info < (3, 12)):
            import numpy  # a memoryview is never cast to a shape without elements, and to float16 only in Python 3.12

            return numpy.frombuffer(view, dtype=code).reshape(present_shape(self.shape)).data
        return view.cast(code, present_shape(self.shape))  # type: ignore[call-overload, no-any-return]

    def tolist(self) -> Any:
        """Nested lists of Python numbers; a number for a 0-d tensor."""
        return nest(self._read(lambda view: decode(view, self.dtype)), present_shape(self.shape))

    def item(self) -> Any:
        """The one element as a Python number."""
        if self.numel() != 1:
            message = f"shape {self.shape} has {self.numel()} elements"
            raise ShapeError("item", message, "reduce or index to one element, or use tolist()")
        located = locate_element(self.uop) if isinstance(self.device, str) else None
        if located is None:
            return self._read(lambda view: decode(view, self.dtype)[0])
        # One element of what is in memory is read there: `t[3].item()` needs no kernel.
        held, number = located
        element = memoryview(bytearray(self.dtype.itemsize))
        read_contents(held, lambda buffer: buffer.read_into(element, present_size(number) * self.dtype.itemsize))
        return decode(element, self.dtype)[0]

    def __bool__(self) -> bool:
        if self.numel() != 1:
            message = f"the truth of {self.numel()} elements (shape {self.shape}) is ambiguous"
            raise ShapeError("bool", message, "use .any() or .all(), and & | ~ instead of and, or, not")
        return bool(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __complex__(self) -> complex:
        return complex(self.item())

    def __index__(self) -> int:
        if not self.dtype.is_int:
            raise ShapeError(
                "index", f"dtype {self.dtype.name} is not an index", "use an integer tensor of one element"
            )
        return int(self.item())

    # ------------------------------------------------------------ facts

    def numel(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    def element_size(self) -> int:
        """The bytes of one element."""
        return self.dtype.itemsize

    def nbytes(self) -> int:
        """The bytes of all elements."""
        return self.numel() * self.dtype.itemsize

    def size(self, dim: int | None = None) -> Shape | int:
        """The shape, or the size of one axis."""
        return self.shape if dim is None else self.shape[check_axis("size", dim, self.ndim)]

    def dim(self) -> int:
        """The number of axes."""
        return self.ndim

    def is_floating_point(self) -> bool:
        """Whether the elements are floats."""
        return self.dtype.is_float

    @property
    def itemsize(self) -> int:
        """The bytes of one element."""
        return self.dtype.itemsize

    def __len__(self) -> int:
        if not self.shape:
            raise ShapeError("len", "a 0-d tensor has no length", "use .item() for its value")
        return int(self.shape[0])

    def __repr__(self) -> str:
        from tilewright.tensor.core.printing import tensor_text  # few programs print, and importing stays light

        return tensor_text(self, self.numpy)

    def __format__(self, spec: str) -> str:
        """A tensor of one element is formatted as its number is: `f"{loss:.3f}"`."""
        if not spec:
            return str(self)
        if self.numel() != 1:
            message = f"{spec!r} for a tensor of shape {self.shape}"
            raise ShapeError("format", message, "format one element, such as `t.mean()`, or use print(t)")
        return format(self.item(), spec)

    # ------------------------------------------------------------ types and devices

    def cast(self, dtype: DType | str) -> Self:
        """Each element as another dtype holds it."""
        wanted = to_dtype(dtype)
        return self if wanted is self.dtype else self._new(build.cast(self.uop, wanted))

    def contiguous(self) -> Self:
        """The tensor in row-major memory of its own."""
        return self._new(build.contiguous(self.uop))

    def detach(self) -> Self:
        """The same values, which no gradient flows through. A view: an assignment to it updates this tensor too."""
        node = marks.detach(self.uop)
        node = marks.set_apart(node) if node.line is not None and node is not self.uop else node
        return self._note_path(type(self)._from_uop(node, self.device), ((Ops.DETACH, None),))
