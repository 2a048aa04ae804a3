"""The base of every family of tensor operations. In: nodes, shapes, axes and operands as the user wrote them.
Out: `TensorBase`, which holds a node and makes results from nodes, and the checks that raise at the user's line.
The core mixins subclass it one after another; the families are siblings above them (`families/base.py`)."""

from __future__ import annotations

import weakref
from typing import Any, Self, cast

from tilewright.base.dtype import DType, Scalar, dtype_of_scalar, dtypes, promote, promote_with_scalar
from tilewright.base.errors import DeviceError, DTypeError, ShapeError, UnsupportedError
from tilewright.engine import devices
from tilewright.engine.execution.traces import note_update
from tilewright.engine.memory import live
from tilewright.graph import build, marks
from tilewright.graph.ops import Ops
from tilewright.graph.spec import Devices, Kind, Shape
from tilewright.graph.symbolic import SymbolicInt
from tilewright.graph.uop import UOp
from tilewright.runtime.buffer import Buffer
from tilewright.runtime.device import is_file_device
from tilewright.tensor.core.checks import broadcast_shape, describe_line, fit, number_node
from tilewright.tensor.core.memory import has_memory, mark_line, memory_like
from tilewright.tensor.core.modes import modes
from tilewright.tensor.core.moves import INVERTIBLE, Move, apply_moves, without_bitcasts

assert devices  # importing it enters the backends


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
            devices = sorted((first.device, other.device), key=lambda at: (is_file_device(at), isinstance(at, str)))
            move = "to" if isinstance(devices[0], str) else "shard"
            raise DeviceError(
                operation,
                f"tensors of different devices: shape {first.shape} on {first.device}, made at "
                f"{describe_line(first.uop.line)}, and shape {other.shape} on {other.device}, made at "
                f"{describe_line(other.uop.line)}",
                f"move one of them, such as `.{move}({devices[0]!r})`",
            )


def common_dtype(*operands: TensorBase | Scalar) -> DType:
    """The dtype that tensors and Python numbers compute in; beside a tensor, numbers count only by kind."""
    tensors = [operand.dtype for operand in operands if isinstance(operand, TensorBase)]
    numbers = [operand for operand in operands if not isinstance(operand, TensorBase)]
    dtype = promote(*tensors) if tensors else promote(*map(dtype_of_scalar, numbers))
    for number in numbers:
        dtype = promote_with_scalar(dtype, number)
    return dtype


# ---------------------------------------------------------------- the tensor, as far as every mixin knows it


def mark_parameter(tensor: TensorBase) -> None:
    """Maps the present node of a parameter to the parameter, also after it has got a newer node."""
    build.stored_root(tensor.uop).cache["parameter"] = weakref.ref(tensor)


def parameter_of(node: UOp) -> TensorBase | None:
    """The parameter whose node this is, or was before an update."""
    mark = node._cache.get("parameter") if node._cache else None
    tensor = None if mark is None else mark()
    return tensor if tensor is not None and tensor._is_parameter else None


class _NodeOnDemand:
    """`uop` of a tensor that was made from memory. Its node is made on first use: results of replays are mostly read or
    passed on, and making a node costs more than the rest of a small launch. The attribute of the instance then hides
    this descriptor."""

    def __get__(self, tensor: TensorBase | None, owner: type) -> Any:
        if tensor is None:
            return self  # `Tensor.uop`, as documentation tools and mocks ask for it
        with live.exchanging:  # two threads that ask at once get one node
            if "uop" not in vars(tensor):
                if "_memory" not in vars(tensor):  # a traceback shows what was being made
                    raise AttributeError("a tensor whose construction failed has no value")
                live.register_once(tensor)
                memory, shape, line = tensor._memory
                tensor.uop = build.reshape(memory.node, shape)
                for node in (memory.node, tensor.uop):
                    node.line = node.line or line
                if tensor._is_cut:
                    memory.node.cache["cut"] = True
                del tensor._memory
            return tensor.uop


class TensorBase:
    """A node, its device, and what gradients need. Everything else is built from these."""

    uop: UOp = cast(Any, _NodeOnDemand())
    _memory: tuple[Buffer, Shape, tuple[str, int] | None]
    device: Devices
    grad: Self | None = None
    _requires_grad: bool = False
    _is_registered: bool = False  # of a tensor made of memory: whether `live` knows it
    _is_cut: bool = False  # of a result of a replay: its graph, which gradients would need, was not made
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
            uop = marks.detach(uop)
        is_float = uop.dtype.is_float
        if is_float and uop.line is not None and not leads_to(uop, self, *others):
            uop = marks.set_apart(uop)  # some other tensor is, or was made from, an equal expression
        made = object.__new__(type(self))
        made._set_up(uop, self.device, requires_grad and is_float)
        return made

    def _view(self, *moves: Move) -> Self:
        """The result of movements, which remembers where it came from."""
        return self._note_path(self._new(apply_moves(self.uop, moves)), moves)

    def _note_path(self, made: Self, moves: tuple[Move, ...]) -> Self:
        """Records in a view how it was made from this tensor, where an assignment to the view can be one to this
        tensor."""
        if INVERTIBLE.issuperset(op for op, _ in moves):
            older = [(ancestor, path + moves) for ancestor, path in self._ancestors if ancestor() is not None]
            made._ancestors = (*older, (weakref.ref(self), moves))
            if is_file_device(self.device):
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
        self.requires_grad_(value)

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

    # ------------------------------------------------------------ parameters

    def requires_grad_(self, value: bool = True) -> Self:
        """Asks for a gradient. A parameter gets memory of its own, so that equal values never make two of them one."""
        self._asked = bool(value)
        if value and self.requires_grad:
            return self  # a result that depends on parameters stays one
        if value and not self.dtype.is_float:
            message = f"a gradient with respect to {self.dtype.name}"
            raise DTypeError("requires_grad_", message, "only float tensors have gradients; cast first")
        self._requires_grad = self._is_parameter = value
        if value:
            self._take_identity()
        return self

    def _told(self, requires_grad: bool | None) -> Self:
        """What the argument `requires_grad` of a constructor said, if anything."""
        return self if requires_grad is None else self.requires_grad_(requires_grad)

    def _take_identity(self) -> None:
        """Makes the node of a parameter one that no other tensor has."""
        root = build.stored_root(self.uop)
        owner = parameter_of(root)
        is_own = has_memory(root) and (owner is None or owner is self)
        if 0 in self.shape:
            return  # nothing flows, and constants are shared
        if not is_own:
            with live.exchanging:
                self.uop = marks.detach(self.uop)
                self._give_memory()
        self._ancestors = ()
        mark_parameter(self)

    def _give_memory(self) -> None:
        """Memory of its own for a value that is computed from constants. Their nodes belong to no device and to no
        tensor, so the result must not be memoised on them. A CONTIGUOUS around the value would be stored in memory of
        its own and copied."""
        memory, value = memory_like(self.uop, self.device), self.uop
        while value.op is Ops.CONTIGUOUS:
            value = value.src[0]
        with live.exchanging:
            self.uop = build.assign(memory, memory, value)

    # ------------------------------------------------------------ operands

    def _operand(self, operation: str, other: object) -> Self | Scalar:
        """A second operand: a number stays one, a tensor has to be on this device, anything else is read as data."""
        if isinstance(other, TensorBase):
            if other.device != self.device:
                if is_file_device(self.device) and operation in ("assign", "setitem", "copy_"):
                    return self._from_uop(build.copy(other.uop, self.device), self.device, other.requires_grad)
                check_devices(operation, self, other)
            return cast(Self, other)
        if isinstance(other, bool | int | float | SymbolicInt):
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

    def _promoted_real(self, operation: str, other: object) -> tuple[UOp, UOp, tuple[TensorBase, ...]]:
        """As `_promoted`, in a float type: integers and bools as the default one. A number need not be one that an
        integer tensor could hold."""
        operand = self._operand(operation, other)
        if not isinstance(operand, TensorBase):
            return self._as_float()._promoted(operation, operand)
        left, right, others = self._promoted(operation, operand)
        real = left.dtype if left.dtype.is_float else dtypes.default_float
        return build.cast(left, real), build.cast(right, real), others

    def _as_float(self) -> Self:
        """Integers and bools as the default float type, as functions of real numbers want them."""
        return self if self.dtype.is_float else self._new(build.cast(self.uop, dtypes.default_float))

    # ------------------------------------------------------------ assignment

    def _fitted(self, operation: str, value: UOp, shape: Shape) -> UOp:
        """A value broadcast to what it is stored in, which does not grow; axes of size 1 in front are dropped."""
        while len(value.shape) > len(shape) and value.shape[0] == 1:
            value = build.reshape(value, value.shape[1:])
        if len(value.shape) > len(shape) or broadcast_shape(operation, value.shape, shape) != shape:
            message = f"a value of shape {value.shape} does not fit into shape {shape}"
            raise ShapeError(operation, message, "give a value that broadcasts to the shape it is stored in")
        return build.broadcast_to(value, shape)

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
                value = marks.detach(value)
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
            # Nothing has memory yet, so there is nothing to write to: the value replaces the old one.
            self.uop = value
        else:
            base = build.contiguous(self.uop)
            moves, value = without_bitcasts(base, moves, value)
            self.uop = build.assign(base, apply_moves(base, moves), value)
            note_update(self.uop)
        mark_line(self.uop)
        if self._is_parameter:
            mark_parameter(self)


def leads_to(node: UOp, *tensors: TensorBase) -> bool:
    """Whether a node is that of one of the tensors, or of what it is a movement of: an operation that changes nothing,
    or undoes others, returns the node from before."""
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
