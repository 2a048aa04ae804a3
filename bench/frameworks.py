"""The frameworks that bench/compare.py measures, behind one interface. In: NumPy arrays and functions of tensors. Out:
tensors of the framework, functions that return when their result is computed, results as arrays, a training step.

A framework is imported when its class is made, in a process of its own. `FIRST_RESULT` is a whole program of each."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np

Function = Callable[..., Any]
BATCH, CLASSES = 128, 10


def images_and_labels() -> tuple[np.ndarray, np.ndarray]:
    """One batch in the shape of MNIST."""
    generator = np.random.default_rng(0)
    return generator.standard_normal((BATCH, 1, 28, 28), dtype=np.float32), generator.integers(0, CLASSES, BATCH)


class Framework(ABC):
    """What a workload may ask of a framework besides the operators of its tensors."""

    @abstractmethod
    def tensor(self, array: np.ndarray) -> Any:
        """The array in the framework's memory."""

    @abstractmethod
    def numpy(self, tensor: Any) -> np.ndarray: ...

    @abstractmethod
    def compiled(self, function: Function) -> Function:
        """The function as the framework runs it fastest; it returns when the result has been computed."""

    @abstractmethod
    def softmax(self, x: Any) -> Any: ...

    @abstractmethod
    def layernorm(self, x: Any) -> Any:
        """Over the last axis, without weights."""

    @abstractmethod
    def convolution(self, x: Any, weight: Any) -> Any:
        """Two-dimensional, with stride 1 and without padding."""

    @abstractmethod
    def gelu(self, x: Any) -> Any:
        """The tanh approximation."""

    @abstractmethod
    def attention(self, query: Any, key: Any, value: Any) -> Any: ...

    def training_step(self) -> Callable[[], float] | None:
        """A function that does one Adam step of the convolutional network on one batch and gives the loss."""
        return None


class GraphFramework(Framework):
    """What Tilewright and tinygrad write alike."""

    def __init__(self, tensor_class: Any, jit: Callable[[Function], Function], nn: Any) -> None:
        self.tensor_class = tensor_class
        self.jit = jit
        self.nn = nn

    def tensor(self, array: np.ndarray) -> Any:
        return self.tensor_class(array).realize()

    def numpy(self, tensor: Any) -> np.ndarray:
        return np.asarray(tensor.numpy())

    def softmax(self, x: Any) -> Any:
        return x.softmax(-1)

    def layernorm(self, x: Any) -> Any:
        return x.layernorm()

    def convolution(self, x: Any, weight: Any) -> Any:
        return x.conv2d(weight)

    def gelu(self, x: Any) -> Any:
        return x.gelu()

    def attention(self, query: Any, key: Any, value: Any) -> Any:
        return query.scaled_dot_product_attention(key, value)

    @abstractmethod
    def training(self) -> contextlib.AbstractContextManager[Any]:
        """The mode in which batch normalisation uses the batch."""

    @abstractmethod
    def finish_step(self, optimizer: Any, loss: Any) -> Any:
        """Updates the parameters and gives the computed loss."""

    def training_step(self) -> Callable[[], float]:
        nn, relu, max_pool = self.nn, self.tensor_class.relu, self.tensor_class.max_pool2d
        layers = [nn.Conv2d(1, 32, 5), relu, nn.Conv2d(32, 32, 5), relu, nn.BatchNorm2d(32), max_pool]
        layers += [nn.Conv2d(32, 64, 3), relu, nn.Conv2d(64, 64, 3), relu, nn.BatchNorm2d(64), max_pool]
        layers += [lambda x: x.flatten(1), nn.Linear(576, CLASSES)]
        optimizer = nn.optim.Adam(nn.state.get_parameters(layers))
        images, labels = images_and_labels()
        x, y = self.tensor(images), self.tensor(labels.astype(np.int32))

        def step() -> Any:
            optimizer.zero_grad()
            loss = x.sequential(layers).sparse_categorical_crossentropy(y)
            loss.backward()
            return self.finish_step(optimizer, loss)

        replayed = self.jit(step)

        def run() -> float:
            with self.training():
                return float(replayed().item())

        return run


class Tilewright(GraphFramework):
    def __init__(self) -> None:
        from tilewright import Tensor, jit, nn

        super().__init__(Tensor, jit, nn)

    def compiled(self, function: Function) -> Function:
        replayed = self.jit(lambda *tensors: function(*tensors).realize())
        return lambda *tensors: replayed(*tensors).synchronize()

    def training(self) -> contextlib.AbstractContextManager[Any]:
        mode: contextlib.AbstractContextManager[Any] = self.tensor_class.train()
        return mode

    def finish_step(self, optimizer: Any, loss: Any) -> Any:
        optimizer.step()
        return loss.realize()


class Tinygrad(GraphFramework):
    def __init__(self) -> None:
        from tinygrad import Context, Device, Tensor, TinyJit, nn

        super().__init__(Tensor, TinyJit, nn)
        self.context = Context
        self.device = Device[Device.DEFAULT]

    def compiled(self, function: Function) -> Function:
        replayed = self.jit(lambda *tensors: function(*tensors).realize())

        def run(*tensors: Any) -> Any:
            result = replayed(*tensors)
            self.device.synchronize()
            return result

        return run

    def training(self) -> contextlib.AbstractContextManager[Any]:
        mode: contextlib.AbstractContextManager[Any] = self.context(TRAINING=1)
        return mode

    def finish_step(self, optimizer: Any, loss: Any) -> Any:
        return loss.realize(*optimizer.schedule_step())


class Torch(Framework):
    """Eager torch, as most of its users run it."""

    def __init__(self) -> None:
        import torch

        self.torch = torch
        self.functional = torch.nn.functional

    def tensor(self, array: np.ndarray) -> Any:
        return self.torch.from_numpy(array)

    def numpy(self, tensor: Any) -> np.ndarray:
        return np.asarray(tensor.numpy())

    def compiled(self, function: Function) -> Function:
        return function

    def softmax(self, x: Any) -> Any:
        return self.torch.softmax(x, -1)

    def layernorm(self, x: Any) -> Any:
        return self.functional.layer_norm(x, x.shape[-1:])

    def convolution(self, x: Any, weight: Any) -> Any:
        return self.functional.conv2d(x, weight)

    def gelu(self, x: Any) -> Any:
        return self.functional.gelu(x, approximate="tanh")

    def attention(self, query: Any, key: Any, value: Any) -> Any:
        return self.functional.scaled_dot_product_attention(query, key, value)

    def training_step(self) -> Callable[[], float]:
        nn = self.torch.nn
        layers = [nn.Conv2d(1, 32, 5), nn.ReLU(), nn.Conv2d(32, 32, 5), nn.ReLU(), nn.BatchNorm2d(32), nn.MaxPool2d(2)]
        layers += [nn.Conv2d(32, 64, 3), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.ReLU(), nn.BatchNorm2d(64)]
        layers += [nn.MaxPool2d(2), nn.Flatten(), nn.Linear(576, CLASSES)]
        model = nn.Sequential(*layers)
        optimizer = self.torch.optim.Adam(model.parameters())
        x, y = (self.tensor(array) for array in images_and_labels())

        def step() -> float:
            optimizer.zero_grad()
            loss = self.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            return float(loss.item())

        return step


class Jax(Framework):
    def __init__(self) -> None:
        import jax

        self.jax = jax

    def tensor(self, array: np.ndarray) -> Any:
        return self.jax.numpy.asarray(array)

    def numpy(self, tensor: Any) -> np.ndarray:
        return np.asarray(tensor)

    def compiled(self, function: Function) -> Function:
        compiled = self.jax.jit(function)
        return lambda *tensors: compiled(*tensors).block_until_ready()

    def softmax(self, x: Any) -> Any:
        return self.jax.nn.softmax(x, -1)

    def layernorm(self, x: Any) -> Any:
        centred = x - x.mean(-1, keepdims=True)
        return centred * self.jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5)

    def convolution(self, x: Any, weight: Any) -> Any:
        return self.jax.lax.conv(x, weight, (1, 1), "VALID")

    def gelu(self, x: Any) -> Any:
        return self.jax.nn.gelu(x)

    def attention(self, query: Any, key: Any, value: Any) -> Any:
        scores = query @ key.swapaxes(-1, -2) / query.shape[-1] ** 0.5
        return self.softmax(scores) @ value


FRAMEWORKS: dict[str, type[Framework]] = {"tilewright": Tilewright, "torch": Torch, "jax": Jax, "tinygrad": Tinygrad}

FIRST_RESULT = {
    "tilewright": "from tilewright import Tensor; assert (Tensor([1, 2, 3]) + 2).tolist() == [3, 4, 5]",
    "torch": "import torch; assert (torch.tensor([1, 2, 3]) + 2).tolist() == [3, 4, 5]",
    "jax": "import jax.numpy as jnp; assert (jnp.array([1, 2, 3]) + 2).tolist() == [3, 4, 5]",
    "tinygrad": "from tinygrad import Tensor; assert (Tensor([1, 2, 3]) + 2).tolist() == [3, 4, 5]",
}
