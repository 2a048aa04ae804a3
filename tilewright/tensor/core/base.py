"""What every family of tensor operations stands on. In: nodes, shapes, axes and operands as the user wrote them.
Out: `TensorBase`, which holds a node and makes results from nodes, and the checks that raise at the user's line.
The mixins are one chain (core, storage, shape, arithmetic, ...): each sees the methods of those before it."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from typing import Any, Self, cast

from tilewright.base.dtype import DType, Scalar, can_hold, dtype_of_scalar, dtypes, promote, promote_with_scalar
from tilewright.base.errors import AxisError, DeviceError, DTypeError, ShapeError, UnsupportedError
from tilewright.engine import devices, live
from tilewright.engine.traces import note_update
from tilewright.graph import build
from tilewright.graph.ops import Ops
from tilewright.graph.spec import Devices, Kind, Shape
from tilewright.graph.uop import UOp
from tilewright.runtime.buffer import Buffer
from tilewright.runtime.device import is_of_files
from tilewright.tensor.core.holding import has_memory, mark_line
from tilewright.tensor.core.moves import INVERTIBLE, Move, apply_moves, without_bitcasts

Axes = int | tuple[int, ...] | list[int] | None

assert devices  # importing it enters the backends


class _Modes(threading.local):
    """Flags of `Tensor.no_grad` and `Tensor.train`; each thread has its own. Both are one attribute, because a jitted
    call asks for them every time."""

    both = (True, False)

    @property
    def grad_enabled(self) -> bool:
        return self.both[0]

    @grad_enabled.setter
    def grad_enabled(self, value: bool) -> None:
        self.both = (value, self.both[1])

    @property
    def training(self) -> bool:
        return self.both[1]

    @training.setter
    def training(self, value: bool) -> None:
        self.both = (self.both[0], value)


modes = _Modes()


# ---------------------------------------------------------------- checks


def _has_index(value: Any) -> bool:
    """Whether an object that may be a whole number is one: NumPy's arrays have `__index__` whatever they hold."""
    try:
        value.__index__()
    except TypeError:
        return False
    return True


def is_whole(value: object) -> bool:
    """Whether a value can be a size or a number of something: Python's and NumPy's integers, and no bools."""
    if not hasattr(value, "__index__") or isinstance(value, bool | TensorBase):
        return False
    return type(value) is int or _has_index(value)


def check_whole(operation: str, name: str, *values: object, least: int | None = None) -> None:
    """Whole numbers, none below `least`."""
    for value in values:
        if not is_whole(value) or (least is not None and int(cast(int, value)) < least):
            remedy = "give a whole number" if least is None else f"give a whole number of at least {least}"
            raise ShapeError(operation, f"{name}={value!r}", remedy)


def check_axis(operation: str, axis: int, ndim: int) -> int:
    """The axis counted from the front."""
    if not is_whole(axis):
        raise AxisError(operation, f"axis {axis!r} is not an integer", "give the number of an axis, such as -1")
    axis = axis.__index__()
    limit = max(ndim, 1)  # torch takes axis 0 and -1 of a 0-d tensor
    if not -limit <= axis < limit:
        remedy = f"give an axis in {-limit}..{limit - 1}"
        raise AxisError(operation, f"axis {axis} is out of range for a tensor of {ndim} axes", remedy)
    return axis + limit if axis < 0 else axis


def check_axes(operation: str, axes: Axes, ndim: int) -> tuple[int, ...]:
    """The axes counted from the front, each once; None is all of them."""
    if axes is None:
        return tuple(range(ndim))
    wanted = tuple(axes) if isinstance(axes, tuple | list) else (axes,)
    found = tuple(check_axis(operation, axis, ndim) for axis in wanted)
    if len(set(found)) != len(found):
        raise AxisError(operation, f"axes {wanted} name an axis twice", "name each axis once")
    return tuple(axis for axis in found if axis < ndim)


def shape_from(operation: str, args: Sequence[Any]) -> tuple[int, ...]:
    """The numbers of `f(2, 3)` or `f((2, 3))`."""
    if len(args) == 1 and isinstance(args[0], tuple | list):
        args = args[0]
    for size in args:
        if not is_whole(size):
            raise ShapeError(operation, f"{size!r} is not an integer", "give sizes as integers, such as (2, 3)")
    return tuple(int(size) for size in args)


def broadcast_shape(operation: str, *shapes: Shape) -> Shape:
    """The shape that all broadcast to: aligned at the last axis, sizes are equal or 1."""
    if all(shape == shapes[0] for shape in shapes):
        return shapes[0]
    ndim = max(map(len, shapes))
    aligned = [(1,) * (ndim - len(shape)) + shape for shape in shapes]
    result = []
    for axis, sizes in enumerate(zip(*aligned)):
        wanted = {size for size in sizes if size != 1}
        if len(wanted) > 1:
            names = " and ".join(str(shape) for shape in shapes)
            unequal = " and ".join(map(str, sorted(wanted)))
            raise ShapeError(
                operation,
                f"shapes {names} do not broadcast: axis {axis - ndim} has sizes {unequal}",
                "make the sizes of that axis equal, or one of them 1 (reshape, unsqueeze, transpose)",
            )
        result.append(wanted.pop() if wanted else 1)
    return tuple(result)


def place_of(line: tuple[str, int] | None) -> str:
    return "an unknown line" if line is None else f"{line[0]}:{line[1]}"


def check_tensors(operation: str, *values: object) -> None:
    """Tensors and nothing else."""
    for given in values:
        if not isinstance(given, TensorBase):
            message = f"a {type(given).__name__} stands where a tensor should"
            raise DTypeError(operation, message, "make a tensor of it, such as `Tensor([1, 2])`")


def check_devices(operation: str, *tensors: TensorBase) -> None:
    """One device for all, or an error that names two that differ and where each was made."""
    check_tensors(operation, *tensors)
    first = tensors[0]
    for other in tensors[1:]:
        if other.device != first.device:
            # To move a tensor to a file is to write the file, which is not what is meant here.
            places = sorted((first.device, other.device), key=lambda at: (is_of_files(at), isinstance(at, str)))
            move = "to" if isinstance(places[0], str) else "shard"
            raise DeviceError(
                operation,
                f"tensors of different devices: shape {first.shape} on {first.device}, made at "
                f"{place_of(first.uop.line)}, and shape {other.shape} on {other.device}, made at "
                f"{place_of(other.uop.line)}",
                f"move one of them, such as `.{move}({places[0]!r})`",
            )


def common_dtype(*operands: TensorBase | Scalar) -> DType:
    """The dtype that tensors and Python numbers compute in; the numbers count only by kind, if there is a tensor."""
    tensors = [operand.dtype for operand in operands if isinstance(operand, TensorBase)]
    numbers = [operand for operand in operands if not isinstance(operand, TensorBase)]
    dtype = promote(*tensors) if tensors else promote(*map(dtype_of_scalar, numbers))
    for number in numbers:
        dtype = promote_with_scalar(dtype, number)
    return dtype


def check_holds(operation: str, dtype: DType, value: object) -> None:
    """A number that the dtype can hold. Another would wrap without a word."""
    if not isinstance(value, int | float):
        raise DTypeError(operation, f"a {type(value).__name__} is no number", "give an int, a float or a bool")
    if not can_hold(dtype, value):
        message = f"{dtype.name} cannot hold {value}, it has {dtype.min}..{dtype.max}"
        raise DTypeError(operation, message, "cast the tensor to a wider dtype first, such as `.cast('int64')`")


def number_node(operation: str, dtype: DType, value: Scalar) -> UOp:
    """A number as an operand of that dtype."""
    check_holds(operation, dtype, value)
    return build.const(dtype, value)


def fit(node: UOp, dtype: DType, shape: Shape) -> UOp:
    """Cast first, so that what is repeated is cast once. A 0-d node stands for every shape as it is."""
    node = build.cast(node, dtype)
    return build.broadcast_to(node, shape) if node.shape else node


# ---------------------------------------------------------------- the tensor, as far as every mixin knows it


def mark_parameter(tensor: TensorBase) -> None:
    """Lets the node that a parameter is now lead to it, also when it has moved on to a newer one."""
    build.stored_root(tensor.uop).cache["parameter"] = weakref.ref(tensor)


def parameter_of(node: UOp) -> TensorBase | None:
    """The parameter that this node is, or was before an update."""
    mark = node._cache.get("parameter") if node._cache else None
    tensor = None if mark is None else mark()
    return tensor if tensor is not None and tensor._is_parameter else None


class _NodeOnDemand:
    """`uop` of a tensor that was made of memory. Its node is made when it is first asked for: results of replays are
    mostly read, or handed on, and a node costs more than all else of a small launch. The instance's own `uop` hides
    this from then on."""

    def __get__(self, tensor: TensorBase | None, owner: type) -> Any:
        if tensor is None:
            return self  # `Tensor.uop`, as documentation tools and mocks ask for it
        with live.exchanging:  # two threads that ask at once get one node
            if "uop" not in vars(tensor):
                live.register_once(tensor)
                memory, shape, line = tensor._memory
                tensor.uop = build.reshape(memory.node, shape)
                for node in (memory.node, tensor.uop):
                    node.line = node.line or line
                del tensor._memory
            return tensor.uop


class TensorBase:
    """A node, its device, and what gradients need. Everything else is built from these."""

    uop: UOp = cast(Any, _NodeOnDemand())
    _memory: tuple[Buffer, Shape, tuple[str, int] | None]
    device: Devices
    grad: Self | None = None
    _requires_grad: bool = False
    _is_entered: bool = False  # of a tensor made of memory: whether `live` knows it
    _is_parameter: bool = False  # it asked for a gradient by itself, and does not merely depend on tensors that did
    _asked: bool | None = None  # what `requires_grad=` said; None where nothing was said
    _is_buffer: bool = False  # of a model: a statistic or a table, which an optimiser leaves alone
    # (ancestor, movements from it to this tensor), outermost first: where an assignment to this view has to go.
    _ancestors: tuple[tuple[weakref.ref[TensorBase], tuple[Move, ...]], ...] = ()
    _owner: TensorBase | None = None  # of a view of a file: the tensor it is a view of, which it keeps alive

    # NumPy leaves `array + tensor` to the tensor.
    __array_ufunc__ = None
    __array_priority__ = 1000

    def _set_up(self, uop: UOp, device: Devices, requires_grad: bool) -> None:
        mark_line(uop)
        self.uop = uop
        self.device = device
        self._requires_grad = requires_grad
        live.register(self)

    @classmethod
    def _from_uop(cls, uop: UOp, device: Devices, requires_grad: bool = False) -> Self:
        made = object.__new__(cls)
        made._set_up(uop, device, requires_grad)
        return made

    @classmethod
    def _from_memory(cls, memory: Buffer, shape: Shape, line: tuple[str, int] | None) -> Self:
        """A tensor whose value lies in memory already; `line` is where it was computed. It is entered among those that
        are alive (`live.register_once`) when anyone else could come to read or write that memory: when it gets a node
        or is an argument of a jitted function."""
        made = object.__new__(cls)
        made._memory = (memory, shape, line)
        made.device = memory.device
        return made

    def _new(self, uop: UOp, *others: TensorBase) -> Self:
        """The result of an operation on this tensor and others."""
        requires_grad = self._requires_grad
        for other in others:
            requires_grad = requires_grad or other._requires_grad
        if requires_grad and not modes.grad_enabled:
            requires_grad = False
            uop = build.detach(uop)
        is_float = uop.dtype.is_float
        if is_float and uop.line is not None and not _leads_to(uop, self, *others):
            uop = build.set_apart(uop)  # some other tensor is, or was made from, an equal expression
        made = object.__new__(type(self))
        made._set_up(uop, self.device, requires_grad and is_float)
        return made

    def _view(self, *moves: Move) -> Self:
        """The result of movements, which remembers where it came from."""
        return self._note_path(self._new(apply_moves(self.uop, moves)), moves)

    def _note_path(self, made: Self, moves: tuple[Move, ...]) -> Self:
        """Lets a view of this tensor remember how it was made, if an assignment to it can be one to this tensor."""
        if all(op in INVERTIBLE for op, _ in moves):
            made._ancestors = (
                *((ancestor, path + moves) for ancestor, path in self._ancestors if ancestor() is not None),
                (weakref.ref(self), moves),
            )
            if is_of_files(self.device):
                made._owner = self  # to assign to the view is to write the file, also where nobody else has `self`
        return made

    def _tensor(self, data: Any) -> Self:
        """A tensor of this device from anything that holds data."""
        return type(self)(data, device=self.device)  # type: ignore[call-arg]

    # ------------------------------------------------------------ facts

    @property
    def shape(self) -> Shape:
        """The size of each axis."""
        return self.uop.shape

    @property
    def requires_grad(self) -> bool:
        """Whether gradients flow to this tensor or through it. Setting it is `requires_grad_`."""
        return self._requires_grad

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        cast(Any, self).requires_grad_(value)

    @property
    def dtype(self) -> DType:
        """The type of the elements."""
        return self.uop.dtype

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.uop.shape)

    def _described(self) -> str:
        return f"{self.dtype.name}{list(self.shape)}"

    # ------------------------------------------------------------ operands

    def _operand(self, operation: str, other: object) -> Self | Scalar:
        """A second operand: a number stays one, a tensor has to be on this device, anything else is read as data."""
        if isinstance(other, TensorBase):
            if other.device != self.device:
                if is_of_files(self.device) and operation in ("assign", "setitem", "copy_"):
                    return self._from_uop(build.copy(other.uop, self.device), self.device, other.requires_grad)
                check_devices(operation, self, other)
            return cast(Self, other)
        if isinstance(other, bool | int | float):
            return other
        if isinstance(other, list | tuple | memoryview) or hasattr(other, "__array_interface__"):
            # A number that NumPy made is a number, as weak as Python's.
            data: Any = other
            is_number = hasattr(data, "item") and getattr(data, "shape", None) == ()
            return cast(Scalar, data.item()) if is_number else self._tensor(data)
        raise DTypeError(
            operation,
            f"a tensor and {type(other).__name__} do not go together",
            "give a tensor, a number, a list or a NumPy array",
        )

    def _promoted(self, operation: str, other: object) -> tuple[UOp, UOp, tuple[TensorBase, ...]]:
        """This tensor and another operand in one dtype and one shape (a number as a 0-d constant); the other tensor."""
        operand = self._operand(operation, other)
        if not isinstance(operand, TensorBase):
            dtype = promote_with_scalar(self.dtype, operand)
            return build.cast(self.uop, dtype), number_node(operation, dtype, operand), ()
        dtype = promote(self.dtype, operand.dtype)
        shape = broadcast_shape(operation, self.shape, operand.shape)
        return fit(self.uop, dtype, shape), fit(operand.uop, dtype, shape), (operand,)

    def _as_float(self) -> Self:
        """Integers and bools as the default float type, as functions of real numbers want them."""
        return self if self.dtype.is_float else self._new(build.cast(self.uop, dtypes.default_float))

    # ------------------------------------------------------------ assignment

    def _store(self, moves: tuple[Move, ...], value: UOp, *others: TensorBase) -> None:
        """Stores `value`, computed from `others`, in the view that `moves` makes of this tensor, and of the tensors
        this one is a view of."""
        with live.exchanging:
            self._store_in_chain(moves, value, *others)

    def _store_in_chain(self, moves: tuple[Move, ...], value: UOp, *others: TensorBase) -> None:
        chain = [(tensor, path) for tensor, path in self._living_ancestors()]
        if any(other.requires_grad for other in others):
            if modes.grad_enabled:
                if any(op is Ops.DETACH for _, path in chain for op, _ in path):
                    message = "a detached view is given values that depend on parameters: it would lose their gradients"
                    raise UnsupportedError("assign", message, "clone() the detached tensor, or detach() the values")
                _require_gradients(self, *(tensor for tensor, _ in chain))
            else:
                value = build.detach(value)
        if not chain:
            self._store_here(moves, value)
            return
        root, path = chain[0]
        root._store_here(path + moves, value)
        for tensor, _ in chain[1:]:
            tensor.uop = apply_moves(root.uop, tensor._path_from(root))
        self.uop = apply_moves(root.uop, path)
        mark_line(self.uop)

    def _living_ancestors(self) -> list[tuple[TensorBase, tuple[Move, ...]]]:
        found = ((ancestor(), path) for ancestor, path in self._ancestors)
        return [(tensor, path) for tensor, path in found if tensor is not None]

    def _path_from(self, root: TensorBase) -> tuple[Move, ...]:
        return next(path for ancestor, path in self._ancestors if ancestor() is root)

    def _store_here(self, moves: tuple[Move, ...], value: UOp) -> None:
        if self._is_parameter:
            mark_parameter(self)
        if all(op is Ops.DETACH for op, _ in moves) and not has_memory(self.uop):
            # Nothing has memory yet, so there is nothing to write to: the value takes the place of the old one.
            self.uop = value
        else:
            base = build.contiguous(self.uop)
            moves, value = without_bitcasts(base, moves, value)
            self.uop = build.assign(base, apply_moves(base, moves), value)
            note_update(self.uop)
        mark_line(self.uop)
        if self._is_parameter:
            mark_parameter(self)


def _leads_to(node: UOp, *tensors: TensorBase) -> bool:
    """Whether a node is that of one of the tensors, or what it is a movement of: an operation that changes nothing, or
    undoes others, gives what was there before."""
    for tensor in tensors:
        below = tensor.uop
        while below is not node and (below.op.kind is Kind.MOVEMENT or below.op is Ops.DETACH):
            below = below.src[0]
        if below is node or any(ancestor.uop is node for ancestor, _ in tensor._living_ancestors()):
            return True
    return False


def _require_gradients(*tensors: TensorBase) -> None:
    """Tensors that are given values with gradients have gradients from now on."""
    for tensor in tensors:
        if tensor._is_parameter:
            message = f"a parameter ({tensor._described()}) is given values that depend on parameters"
            remedy = "update it inside `with Tensor.no_grad():`, or detach() the values"
            raise UnsupportedError("assign", message, remedy)
    for tensor in tensors:
        tensor._requires_grad = True
