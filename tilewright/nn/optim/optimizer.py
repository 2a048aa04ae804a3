"""The base class of optimisers. In: parameters and a learning rate. Out: `step()`, which assigns parameters and state.
A step is realised in one call, so that the scheduler can fuse all of it and update memory in place. A subclass makes
its state and defines the update of one parameter in `_new_value`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tilewright.base.dtype import DType, dtypes
from tilewright.base.errors import DTypeError, ShapeError, UnsupportedError
from tilewright.graph import build
from tilewright.tensor.core.checks import describe_line
from tilewright.tensor.core.graph_memo import Built, remembered
from tilewright.tensor.tensor import Tensor

Update = tuple[Tensor, Tensor]


def _is_setting(value: object) -> bool:
    """Whether an attribute of an optimiser is a number, a name, or several of them."""
    if isinstance(value, tuple):
        return all(map(_is_setting, value))
    return value is None or isinstance(value, bool | int | float | str)


def compute_dtype(tensor: Tensor) -> DType:
    """The dtype of an update and its state: 8- and 16-bit floats would lose small steps."""
    return tensor.dtype if tensor.dtype.bits >= 32 else dtypes.float32


def wide(tensor: Tensor) -> Tensor:
    """The values of a tensor in the dtype of its update."""
    return tensor.detach().cast(compute_dtype(tensor))


class Optimizer:
    """`params` may be all tensors of a model. Each float tensor is a parameter: its requires_grad is set where it is
    None, and lazy ones are realised. Buffers (`nn.state.as_buffer`) and integers are only realised with the step. A
    tensor with `requires_grad=False` is an error. `lr` is a tensor: `optimizer.lr.assign(0.01)` changes it, inside a
    jitted function as well."""

    # The state dict of an optimiser has its own state only; parameters are saved with the model.
    not_in_state = ("params", "buffers")

    def __init__(self, params: Iterable[Tensor], lr: float | Tensor) -> None:
        name = type(self).__name__
        found = [params] if isinstance(params, Tensor) else list(params)
        for tensor in found:
            if not isinstance(tensor, Tensor):
                message = f"a {type(tensor).__name__} among the parameters"
                raise DTypeError(name, message, "give tensors, such as nn.state.get_parameters(model)")
        found = list({id(tensor): tensor for tensor in found}.values())
        self.buffers = [tensor for tensor in found if tensor._is_buffer or not tensor.dtype.is_float]
        self.params = [tensor for tensor in found if not tensor._is_buffer and tensor.dtype.is_float]
        for tensor in self.params:
            _check_trainable(name, tensor, found)
        for tensor in self.params:
            tensor.requires_grad_()
        if not self.params:
            raise ShapeError(name, "no parameter", "give float tensors, such as nn.state.get_parameters(model)")
        self.device = self.params[0].device
        self.lr = self._number(lr)
        self._check_number("lr", lr)

    # ------------------------------------------------------------ for subclasses

    def _check_number(self, name: str, value: float | Tensor, below: float = float("inf")) -> None:
        if not isinstance(value, Tensor) and not (isinstance(value, int | float) and 0 <= value < below):
            limit = "" if below == float("inf") else f" and below {below}"
            raise ShapeError(type(self).__name__, f"{name}={value}", f"give a number of at least 0{limit}")

    def _number(self, value: float | Tensor) -> Tensor:
        """A number as a tensor, so that a change needs no new trace of a jitted function."""
        is_double = any(tensor.dtype is dtypes.float64 for tensor in self.params)
        dtype = dtypes.float64 if is_double else dtypes.float32
        start = value.detach().to(self.device).cast(dtype).reshape(()) if isinstance(value, Tensor) else value
        return Tensor.empty((), dtype=dtype, device=self.device).assign(start)

    def _zeros(self) -> list[Tensor]:
        """State of the shape of each parameter, initially 0."""
        return [tensor.empty_like(dtype=compute_dtype(tensor)).assign(0) for tensor in self.params]

    def _start(self, *state: Tensor) -> None:
        """Realises parameters and state, so that the first step launches the same kernels as the second. A tensor over
        the memory of a NumPy array is copied."""
        for tensor in (*self.params, *self.buffers):
            if "borrowed" in build.stored_root(tensor.uop).cache:
                tensor.assign(tensor.detach().clone())
        self.lr.realize(*self.params, *self.buffers, *state)

    def _new_value(self, index: int, value: Tensor, grad: Tensor, rate: Tensor) -> tuple[Tensor, list[Update]]:
        """The next value of parameter number `index`, and updates of its state."""
        raise UnsupportedError(type(self).__name__, "no rule for an update", "use a subclass, such as SGD or Adam")

    def _shared_updates(self) -> list[Update]:
        """Updates of state that all parameters share; they come first."""
        return []

    # ------------------------------------------------------------ for users

    @property
    def rates(self) -> list[Tensor]:
        """The learning rates, which schedules assign."""
        return [self.lr]

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Removes the gradients, or sets them to 0."""
        for tensor in self.params:
            tensor.grad = None if set_to_none or tensor.grad is None else tensor.grad.zeros_like()

    def step(self, skip: Tensor | None = None) -> None:
        """Updates every parameter that has a gradient. Where `skip` (a bool tensor of one element) is true, nothing
        changes; it is evaluated on the device."""
        changed = self.schedule_step(skip)
        if changed:
            changed[0].realize(*changed[1:])

    def schedule_step(self, skip: Tensor | None = None) -> list[Tensor]:
        """Assigns without realising. Returns the tensors to realise, so that they can be realised together with
        others."""
        todo = [(index, tensor) for index, tensor in enumerate(self.params) if tensor.grad is not None]
        if not todo:
            return []
        with Tensor.no_grad():
            changed = [self._put(tensor, value, skip) for tensor, value in self._shared_updates()]
            settings = self._settings()
            for index, tensor in todo:
                changed += self._update_one(index, tensor, skip, settings)
        grads = [tensor.grad for _, tensor in todo if tensor.grad is not None]
        return [*changed, *grads, *self.buffers, *(() if skip is None else (skip,))]

    def _settings(self) -> tuple[object, ...] | None:
        """All that an update depends on besides tensors. None where an attribute is of another kind, and for classes
        of others, whose updates may depend on anything."""
        if type(self).__module__.partition(".")[0] != __name__.partition(".")[0]:
            return None
        found: list[object] = [type(self)]
        for name, value in vars(self).items():
            if _is_setting(value):
                found += (name, type(value), value)
            elif not all(isinstance(each, Tensor) for each in (value if isinstance(value, list) else [value])):
                return None
        return tuple(found)

    def _state_of(self, index: int) -> list[Tensor]:
        """The tensors that the update of parameter number `index` may read or update."""
        found = []
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                found.append(value)
            elif isinstance(value, list) and name not in self.not_in_state:
                found += [value[index]] if len(value) == len(self.params) else value
        return found

    def _update_one(
        self, index: int, tensor: Tensor, skip: Tensor | None, settings: tuple[object, ...] | None
    ) -> list[Tensor]:
        grad = tensor.grad
        assert grad is not None
        if grad.shape != tensor.shape:
            message = f"a gradient of shape {grad.shape} for a parameter of shape {tensor.shape}"
            raise ShapeError(f"{type(self).__name__}.step", message, "set .grad to a tensor of the parameter's shape")
        operands = [tensor, grad, *self._state_of(index)]
        numbers = {id(operand): number for number, operand in enumerate(operands)}
        updated: list[Tensor] = []

        def update() -> Built[Tensor]:
            value = wide(tensor)
            rate = self.lr.to(tensor.device).cast(value.dtype)
            new_value, others = self._new_value(index, value, grad.detach().cast(value.dtype), rate)
            updates = [*others, (tensor, new_value)]
            updated.extend(state for state, _ in updates)
            form = tuple(numbers.get(id(state)) for state in updated)
            return [value.cast(state.dtype) for state, value in updates], None if None in form else form

        values, form = remembered(None if settings is None else (settings, index), operands, update)
        targets = updated or [operands[number] for number in form]
        return [self._put(target, value, skip) for target, value in zip(targets, values)]

    @staticmethod
    def _put(tensor: Tensor, value: Tensor, skip: Tensor | None) -> Tensor:
        value = value.cast(tensor.dtype)
        if skip is not None:
            value = skip.to(tensor.device).where(tensor.detach(), value)
        return tensor.assign(value)


def _check_trainable(operation: str, tensor: Tensor, given: Sequence[Tensor]) -> None:
    """Raises an error for tensors that an optimiser could not update, or would separate from the tensor they are a view
    of."""
    described = f"a parameter ({tensor._described()}, made at {describe_line(tensor.uop.line)})"
    if tensor._asked is False:
        remedy = "leave it out, or mark it with nn.state.as_buffer(tensor) if it belongs to the model"
        raise UnsupportedError(operation, f"{described} has requires_grad=False", remedy)
    if tensor.requires_grad and not tensor._is_parameter:
        message = f"{described} is computed from parameters, so that gradients go to those"
        raise UnsupportedError(operation, message, "compute it in the call, or make it `.detach().requires_grad_()`")
    if any(ancestor is other for ancestor, _ in tensor._living_ancestors() for other in given):
        message = f"{described} is a view of another that is given too"
        raise UnsupportedError(operation, message, "make the view in the call, and give the tensor it is a view of")


class OptimizerGroup(Optimizer):
    """Several optimisers, each with its own parameters, with one step."""

    def __init__(self, *optimizers: Optimizer) -> None:
        if not optimizers:
            raise ShapeError("OptimizerGroup", "no optimiser", "give at least one")
        self.optimizers = list(optimizers)
        self.params = [tensor for optimizer in optimizers for tensor in optimizer.params]
        self.buffers = [tensor for optimizer in optimizers for tensor in optimizer.buffers]
        self.device = optimizers[0].device
        if len({id(tensor) for tensor in self.params}) != len(self.params):
            message = "a parameter belongs to two of the optimisers"
            raise ShapeError("OptimizerGroup", message, "give each parameter to one optimiser")

    def __getitem__(self, index: int) -> Optimizer:
        return self.optimizers[index]

    def __len__(self) -> int:
        return len(self.optimizers)

    @property
    def rates(self) -> list[Tensor]:
        return [rate for optimizer in self.optimizers for rate in optimizer.rates]

    def schedule_step(self, skip: Tensor | None = None) -> list[Tensor]:
        return [tensor for optimizer in self.optimizers for tensor in optimizer.schedule_step(skip)]


def norm_of(tensors: Sequence[Tensor]) -> Tensor:
    """The Euclidean norm of all elements."""
    squares = [tensor.square().sum() for tensor in tensors]
    total = squares[0]
    for square in squares[1:]:
        total = total + square.to(total.device)
    return total.sqrt()
