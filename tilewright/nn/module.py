"""`Module` and `Parameter`, as in torch. In: a class with `forward`. Out: a model with the methods of torch's modules.
A model needs no base class; `nn.state` does the same for any object."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self

from tilewright.base.errors import UnsupportedError
from tilewright.graph.spec import Devices
from tilewright.nn.layers import ModuleDict, ModuleList, describe
from tilewright.nn.state import OPAQUE, as_buffer, get_state_dict, load_state_dict, parts_of
from tilewright.tensor.tensor import Tensor


class Module:
    """A base class for models in torch's style: a call runs `forward`. A model needs no base class, and layers have
    none; this one adds methods for the functions of `nn.state`. `train()` and `eval()` set the mode of the thread."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.forward(*args, **kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The computation of the model; defined by subclasses."""
        name = type(self).__name__
        raise UnsupportedError(name, "the class has no forward()", "define forward(self, ...), or __call__")

    def __repr__(self) -> str:
        return describe(self)

    @property
    def training(self) -> bool:
        return Tensor.training

    def train(self, mode: bool = True) -> Self:
        """Sets the mode of the thread, as `Tensor.training = mode` does."""
        Tensor.training = mode
        return self

    def eval(self) -> Self:
        """Leaves training mode."""
        return self.train(False)

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """The tensors that optimisers train, by name."""
        for name, tensor in get_state_dict(self).items():
            if tensor.dtype.is_float and not tensor._is_buffer:
                yield name, tensor

    def parameters(self) -> list[Tensor]:
        """The tensors that optimisers train, each once."""
        return list({id(tensor): tensor for _, tensor in self.named_parameters()}.values())

    def named_modules(self) -> Iterator[tuple[str, Any]]:
        """This model and every layer in it by name, each once."""
        yield "", self
        yield from _named_layers(self, "", {id(self)})

    def modules(self) -> Iterator[Any]:
        """This model and every layer in it, each once."""
        return (layer for _, layer in self.named_modules())

    def named_children(self) -> Iterator[tuple[str, Any]]:
        """The layers of this model by name, without the layers of these."""
        return ((name, layer) for name, layer in _direct_layers(self))

    def children(self) -> Iterator[Any]:
        """The layers of this model, without the layers of these."""
        return (layer for _, layer in _direct_layers(self))

    def apply(self, fn: Callable[[Any], object]) -> Self:
        """Calls a function with every layer, from the innermost on, and with this model at last."""
        for layer in reversed(list(self.modules())):
            fn(layer)
        return self

    def named_buffers(self) -> Iterator[tuple[str, Tensor]]:
        """The tensors that are not trained, by name."""
        for name, tensor in get_state_dict(self).items():
            if not tensor.dtype.is_float or tensor._is_buffer:
                yield name, tensor

    def buffers(self) -> list[Tensor]:
        """The tensors that are not trained, each once."""
        return list({id(tensor): tensor for _, tensor in self.named_buffers()}.values())

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Whether the parameters get gradients."""
        for tensor in self.parameters():
            tensor.requires_grad_(requires_grad)
        return self

    def register_buffer(self, name: str, tensor: Tensor) -> None:
        """Sets an attribute to a tensor that is not trained."""
        setattr(self, name, as_buffer(tensor))

    def state_dict(self) -> dict[str, Tensor]:
        """Every tensor by name."""
        return get_state_dict(self)

    def load_state_dict(self, state_dict: Mapping[str, Tensor], strict: bool = True) -> None:
        """Assigns the values of a state dict to the tensors."""
        load_state_dict(self, state_dict, strict=strict)

    def zero_grad(self) -> None:
        """Removes the gradients."""
        for tensor in self.parameters():
            tensor.grad = None

    def to(self, device: Devices) -> Self:
        """Moves the tensors to another device."""
        for tensor in get_state_dict(self).values():
            tensor.to_(device)
        return self


def _is_layer(value: Any) -> bool:
    """Lists and dicts of layers, and objects that can be called and are neither functions nor wrappers of one."""
    if isinstance(value, ModuleList | ModuleDict):
        return True
    return callable(value) and not isinstance(value, OPAQUE) and not hasattr(value, "__wrapped__")


def _direct_layers(owner: Any) -> Iterator[tuple[str, Any]]:
    """The layers that are attributes of an object, and those in its plain lists and dicts, by name."""
    for key, part in parts_of(owner):
        if _is_layer(part):
            yield str(key), part
        elif isinstance(part, list | tuple | Mapping):
            yield from ((f"{key}.{name}", layer) for name, layer in _direct_layers(part))


def _named_layers(owner: Any, prefix: str, seen: set[int]) -> Iterator[tuple[str, Any]]:
    for name, layer in _direct_layers(owner):
        if id(layer) not in seen:
            seen.add(id(layer))
            yield prefix + name, layer
            yield from _named_layers(layer, f"{prefix}{name}.", seen)


def Parameter(data: Any, requires_grad: bool = True) -> Tensor:
    """A new tensor that requires a gradient."""
    value = data.detach() if isinstance(data, Tensor) else Tensor(data)
    return value.clone().realize().requires_grad_(requires_grad)
