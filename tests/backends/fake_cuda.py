"""A CUDA driver made of host memory, for tests of what stands on the driver API where there is no card.

It does at once what a card does later, and is as strict: a launch of a graph keeps the arguments it was given when it
was added or last set, freed memory is gone, and there is only so much of it.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from tilewright.backends.cuda.library import OUT_OF_MEMORY, KernelNodeParams, Library

ATTRIBUTES = {1: 1024, 12: 65536, 16: 132, 38: 60 << 20, 75: 9, 76: 0, 97: 232448}


class FakeCard(Library):
    """`kernels` are what module functions do, by name: they are called with the addresses of their buffers."""

    def __init__(self, capacity: int = 64 << 20, kernels: dict[str, Callable[..., None]] | None = None) -> None:
        super().__init__(self._function, "fake")
        self.capacity = capacity
        self.kernels = kernels or {}
        self.blocks: dict[int, Any] = {}
        self.calls: list[str] = []
        self.names: dict[int, str] = {}
        self.graphs: dict[int, list[tuple[int, tuple[int, ...]]]] = {}
        self.orders: dict[int, list[list[int]]] = {}  # of each node of a graph, the nodes it waits for
        self.numbers = itertools.count(1)

    def _function(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any) -> tuple[Any, ...]:
            self.calls.append(name)
            result = getattr(self, f"do_{name}", lambda *_: None)(*arguments)
            if isinstance(result, int) and not isinstance(result, bool) and name in ("cuMemAlloc",) and result < 16:
                return (result, 0)
            return (0,) if result is None else (0, *result) if isinstance(result, tuple) else (0, result)

        return call

    def native(self, name: str) -> Callable[..., int]:
        function = self.raw(name)
        return lambda *arguments: int(function(*arguments)[0])

    def counted(self, name: str) -> int:
        return self.calls.count(name)

    # ------------------------------------------------------------ the card

    def do_cuDeviceGetCount(self) -> int:
        return 1

    def do_cuDeviceGet(self, ordinal: int) -> int:
        return ordinal

    def do_cuDeviceGetName(self, length: int, device: int) -> bytes:
        return b"fake card\0"

    def do_cuDeviceGetAttribute(self, attribute: int, device: int) -> int:
        return ATTRIBUTES[attribute]

    def handle(self, *_: Any) -> int:
        return next(self.numbers)

    do_cuDevicePrimaryCtxRetain = do_cuStreamCreate = do_cuEventCreate = do_cuModuleLoadData = handle

    def do_cuEventElapsedTime(self, start: int, stop: int) -> float:
        return 2.0

    def do_cuGetErrorName(self, code: int) -> bytes:
        return f"CODE_{code}".encode()

    do_cuGetErrorString = do_cuGetErrorName

    # ------------------------------------------------------------ memory

    def used(self) -> int:
        return sum(len(block) for block in self.blocks.values())

    def do_cuMemGetInfo(self) -> tuple[int, int]:
        return self.capacity - self.used(), self.capacity

    def do_cuMemAlloc(self, nbytes: int) -> int:
        if self.used() + nbytes > self.capacity:
            return OUT_OF_MEMORY
        block = (ctypes.c_uint8 * nbytes)()
        self.blocks[ctypes.addressof(block)] = block
        return ctypes.addressof(block)

    def do_cuMemFree(self, address: int) -> None:
        del self.blocks[address]

    def do_cuMemHostAlloc(self, nbytes: int, flags: int) -> int:
        block = (ctypes.c_uint8 * nbytes)()
        setattr(self, f"pinned{ctypes.addressof(block)}", block)
        return ctypes.addressof(block)

    def copied(self, to: int, source: int, nbytes: int, stream: int) -> None:
        ctypes.memmove(to, source, nbytes)

    do_cuMemcpyHtoDAsync = do_cuMemcpyDtoHAsync = do_cuMemcpyDtoDAsync = copied

    # ------------------------------------------------------------ kernels

    def do_cuModuleGetFunction(self, module: int, name: bytes) -> int:
        number = next(self.numbers)
        self.names[number] = name.decode()
        return number

    def arguments_at(self, function: int, place: int) -> tuple[int, ...]:
        count = self.kernels[self.names[function]].__code__.co_argcount
        pointers = (ctypes.c_void_p * count).from_address(place)
        return tuple(ctypes.c_uint64.from_address(pointer or 0).value for pointer in pointers)

    def do_cuLaunchKernelEx(self, config: int, function: int, arguments: int, extra: None) -> None:
        self.kernels[self.names[function]](*self.arguments_at(function, arguments))

    def do_cuGraphCreate(self, flags: int) -> int:
        number = next(self.numbers)
        self.graphs[number] = []
        self.orders[number] = []
        return number

    def do_cuGraphInstantiate(self, graph: int, flags: int) -> int:
        return graph

    def add_kernel_node(self, graph: Any, previous: Sequence[Any], params: KernelNodeParams) -> Any:
        self.orders[graph].append(list(previous))
        self.graphs[graph].append((params.function, self.arguments_at(params.function, params.arguments)))
        return len(self.graphs[graph]) - 1

    def node_params(self, params: KernelNodeParams) -> Any:
        return params

    def do_cuGraphExecKernelNodeSetParams(self, graph: int, node: int, params: KernelNodeParams) -> None:
        self.graphs[graph][node] = (params.function, self.arguments_at(params.function, params.arguments))

    def do_cuGraphLaunch(self, graph: int, stream: int) -> None:
        waiting = dict(enumerate(self.orders[graph]))
        while waiting:  # the latest of those that may run: an order that was not asked for is not kept by chance
            node = max(n for n, needed in waiting.items() if not any(each in waiting for each in needed))
            del waiting[node]
            function, arguments = self.graphs[graph][node]
            self.kernels[self.names[function]](*arguments)
