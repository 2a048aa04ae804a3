"""What the programs of `bench/programs.py` are made of. In: a function that is written once for both libraries, its
sizes, and a library. Out: a call, which gives what the function returns: the loss of one that trains, and the gradient
of each parameter, or the results of one that does not."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from bench.models import Sizes
from bench.network_rows import Array, sizes_of
from bench.networks import WIDER
from bench.sweep import numbers_of_ours, numbers_of_torch, placed
from tilewright import Tensor, dtypes, fft, linalg
from tilewright.nn import functional

CREATORS = ("arange", "eye", "full", "ones", "zeros")
WIDE = ("eye", "ones", "zeros")  # have a float dtype where none is stated

# ---------------------------------------------------------------- libraries


class Library:
    """Functions by the names they have in `torch`; `F` has those of `torch.nn.functional`. Tensors that they create are
    on the library's device; zeros and ones have the dtype `wide` where none is stated. Parameters and inputs have the
    library's dtype; `wide` is float32, or float64 where that is the dtype."""

    F: Any
    device: str
    dtype: Any
    wide: Any

    def __getattr__(self, name: str) -> Any:
        function = self.function(name)
        if name in WIDE:
            return partial(function, device=self.device, dtype=self.wide)
        return partial(function, device=self.device) if name in CREATORS else function

    def function(self, name: str) -> Any:
        """What the library has under a name."""
        raise NotImplementedError

    def tensor(self, array: Array, is_parameter: bool) -> Any:
        """An array on the device, floats in the library's dtype."""
        raise NotImplementedError

    def widen(self, tensor: Any) -> Any:
        """The tensor in at least float32: a reference in float64 keeps its width."""
        raise NotImplementedError

    def gradients(self, loss: Any, parameters: list[Any]) -> list[Any]:
        """Of the loss, in the order of the parameters."""
        raise NotImplementedError

    def computed(self, results: list[Any]) -> list[Any]:
        """The results, when their kernels have been launched."""
        raise NotImplementedError

    def numbers(self, tensor: Any) -> Array:
        """A result in float64."""
        raise NotImplementedError


class TorchLibrary(Library):
    """torch. A reference computes in the next wider dtype, from the same numbers as in the given one."""

    def __init__(self, device: str, dtype: str, is_reference: bool = False) -> None:
        import torch

        self.torch, self.F = torch, torch.nn.functional
        self.device = "cuda" if device.startswith("CUDA") else "cpu"
        self.given_dtype = getattr(torch, dtype)
        self.dtype = getattr(torch, WIDER[dtype]) if is_reference else self.given_dtype
        self.wide = torch.float64 if self.dtype is torch.float64 else torch.float32

    def function(self, name: str) -> Any:
        return getattr(self.torch, name)

    def tensor(self, array: Array, is_parameter: bool) -> Any:
        tensor = self.torch.from_numpy(array).to(self.device)
        if tensor.is_floating_point():
            tensor = tensor.to(self.given_dtype).to(self.dtype).requires_grad_(is_parameter)
        return tensor

    def widen(self, tensor: Any) -> Any:
        return tensor.to(self.wide)

    def gradients(self, loss: Any, parameters: list[Any]) -> list[Any]:
        return list(self.torch.autograd.grad(loss, parameters))

    def computed(self, results: list[Any]) -> list[Any]:
        return [result.detach() for result in results]

    def numbers(self, tensor: Any) -> Array:
        return numbers_of_torch(tensor)


class OurLibrary(Library):
    """tilewright."""

    def __init__(self, device: str, dtype: str) -> None:
        self.F, self.device, self.dtype_name = functional, device, dtype
        self.dtype, self.wide = getattr(dtypes, dtype), dtypes.float32

    def function(self, name: str) -> Any:
        if name in ("cat", "stack"):
            join = getattr(Tensor, name)
            return lambda parts, axis=0: join(*parts, dim=axis)
        return {"fft": fft, "linalg": linalg}.get(name) or getattr(Tensor, name)

    def tensor(self, array: Array, is_parameter: bool) -> Tensor:
        array = array if array.dtype == np.float32 else array.astype(np.int32)
        tensor = placed(array, self.device, self.dtype_name)
        if is_parameter:
            tensor.requires_grad_(True)
        return tensor

    def widen(self, tensor: Any) -> Any:
        return tensor.cast(self.wide)

    def gradients(self, loss: Any, parameters: list[Any]) -> list[Any]:
        return list(loss.gradient(*parameters))

    def computed(self, results: list[Any]) -> list[Any]:
        Tensor.realize(*results)
        return results

    def numbers(self, tensor: Any) -> Array:
        return numbers_of_ours(tensor)


# ---------------------------------------------------------------- what a program is given


@dataclass
class Given:
    """The parameters and inputs of a program by name. A call looks them up: one that is jitted must not make random
    numbers with numpy."""

    parameters: dict[str, Any]
    inputs: dict[str, Any]

    def parameter(self, name: str, *shape: int, scale: float | None = None) -> Any:
        """Normal numbers times a scale, whose gradient is a result. Without a scale they are divided by the square root
        of the terms of a sum that has them as weights."""
        return self.parameters[name]

    def values(self, name: str, *shape: int) -> Any:
        """An input of normal numbers."""
        return self.inputs[name]

    def integers(self, name: str, below: int, *shape: int) -> Any:
        """An input of integers from 0, all `below` a number."""
        return self.inputs[name]


class Maker(Given):
    """Makes what a program asks for, by a random generator whose seed is the name: the first pass of a program."""

    def __init__(self, library: Library) -> None:
        super().__init__({}, {})
        self.library = library

    def parameter(self, name: str, *shape: int, scale: float | None = None) -> Any:
        if name not in self.parameters:
            usual = 1 / math.sqrt(math.prod(shape[1:])) if len(shape) > 1 else 0.1
            normal = _generator(name).standard_normal(shape, dtype=np.float32)
            self.parameters[name] = self.library.tensor(normal * np.float32(usual if scale is None else scale), True)
        return self.parameters[name]

    def values(self, name: str, *shape: int) -> Any:
        if name not in self.inputs:
            normal = _generator(name).standard_normal(shape, dtype=np.float32)
            self.inputs[name] = self.library.tensor(normal, False)
        return self.inputs[name]

    def integers(self, name: str, below: int, *shape: int) -> Any:
        if name not in self.inputs:
            self.inputs[name] = self.library.tensor(_generator(name).integers(0, below, shape), False)
        return self.inputs[name]


def _generator(name: str) -> np.random.Generator:
    return np.random.default_rng(list(name.encode()))


# ---------------------------------------------------------------- programs


@dataclass(frozen=True)
class Program:
    """A function of a library, its `F`, what the program is given, and the sizes of a scale. It returns a loss where it
    trains, else its results."""

    function: Callable[..., Any]
    sizes: dict[str, Sizes]
    trains: bool = True

    @property
    def name(self) -> str:
        return self.function.__name__

    @property
    def title(self) -> str:
        return (self.function.__doc__ or self.name).split(".")[0]

    def results(self, library: Library, given: Given, scale: str) -> list[Any]:
        """What the function returns, as a list."""
        found = self.function(library, library.F, given, **self.sizes[scale])
        return list(found) if isinstance(found, tuple) else [found]


def program(**sizes: int | tuple[int, ...]) -> Callable[[Callable[..., Any]], Program]:
    """A program that trains, whose sizes are a number for all scales, or one for a card, a host and tests."""
    return lambda loss: Program(loss, sizes_of(**sizes))


def computation(**sizes: int | tuple[int, ...]) -> Callable[[Callable[..., Any]], Program]:
    """A program without gradients, in float32 on every device."""
    return lambda function: Program(function, sizes_of(**sizes), trains=False)


def call_of(
    program: Program, scale: str, library: Library, transform: Callable[[Any], Any] | None = None
) -> tuple[Callable[[], list[Any]], list[str]]:
    """A call that gives the results of a program, and their names: the loss and the parameters of one that trains.
    `transform` is a compiler's, of the program's function."""
    maker = Maker(library)
    first = program.results(library, maker, scale)
    given = Given(maker.parameters, maker.inputs)
    parameters = list(given.parameters.values())

    def results() -> list[Any]:
        return program.results(library, given, scale)

    function = transform(results) if transform else results

    def call() -> list[Any]:
        found = function()
        if program.trains:
            found = [*found, *library.gradients(found[0], parameters)]
        return library.computed(found)

    names = ["loss", *given.parameters] if program.trains else [f"result {at}" for at in range(len(first))]
    return call, names
