"""Lists of launches. In: kernels with their buffers, in order. Out: a `Runner` of the list.
The first runs are single launches; a list that is run again becomes a CUDA graph, whose launches take new buffers. In
the graph a launch waits for those before it that use the same memory, and runs in parallel with the others."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from typing import Any

from tilewright.backends.cuda.card import Card
from tilewright.backends.cuda.library import KernelNodeParams, LaunchConfig
from tilewright.backends.cuda.tensor_map import MAP_ALIGNMENT, MAP_BYTES, TensorMap
from tilewright.base.records import NamedTuple
from tilewright.runtime.device import Address, Binding, Runner, VariableBinding

# A graph pays from this many launches on, and from this run on: making one costs about as much as a few runs.
MIN_LAUNCHES = 2
MIN_RUNS = 2


class CudaKernel(NamedTuple):
    """A loaded function with the shape of its launch; `slots` are the buffers it takes, in order, and `written` those
    that it writes, each of them reached through that slot alone."""

    function: Any
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    slots: tuple[int, ...]
    maps: tuple[TensorMap, ...] = ()  # before the buffers
    written: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()  # the bytes of each buffer, in the order of `slots`
    variables: tuple[str, ...] = ()  # after the buffers
    values: tuple[int, ...] = ()  # of the variables, once they are bound
    has_table: bool = False  # whether it takes all buffers as one argument: a table of their addresses

    def shares_written(self, arguments: Sequence[Address]) -> bool:
        """Whether it would write a buffer that another slot has too."""
        addresses = [arguments[slot][0].address + arguments[slot][1] for slot in self.slots]
        return any(addresses.count(arguments[slot][0].address + arguments[slot][1]) > 1 for slot in self.written)


class _Launch:
    """One launch, with its arguments in host memory, where the driver reads them."""

    def __init__(self, kernel: CudaKernel, arguments: Sequence[Address], stream: Any) -> None:
        self.kernel = kernel
        self.position = {slot: number for number, slot in enumerate(kernel.slots)}
        count = len(kernel.slots)
        self.addresses = (ctypes.c_uint64 * count)(*(arguments[s][0].address + arguments[s][1] for s in kernel.slots))
        self.map_memory = (ctypes.c_ubyte * (MAP_BYTES * len(kernel.maps) + MAP_ALIGNMENT))()
        self.map_start = -(-ctypes.addressof(self.map_memory) // MAP_ALIGNMENT) * MAP_ALIGNMENT
        for slot in {tensor_map.slot for tensor_map in kernel.maps}:
            self.encode_maps(slot)
        start = ctypes.addressof(self.addresses)
        given = [self.map_start + MAP_BYTES * number for number in range(len(kernel.maps))]
        given += [start] if kernel.has_table else [start + 8 * number for number in range(count)]
        # A kernel that takes 32 bits reads the lower half of a word.
        self.values = (ctypes.c_int64 * max(len(kernel.variables), 1))(*kernel.values)
        given += [ctypes.addressof(self.values) + 8 * number for number in range(len(kernel.variables))]
        self.pointers = (ctypes.c_void_p * len(given))(*given)
        self.arguments = ctypes.addressof(self.pointers)
        grid, block = (ctypes.c_uint * 3)(*kernel.grid), (ctypes.c_uint * 3)(*kernel.block)
        self.config = LaunchConfig(grid, block, kernel.shared_bytes, int(stream), None, 0)
        self.call = (ctypes.addressof(self.config), int(kernel.function), self.arguments, None)

    def encode_maps(self, slot: int) -> None:
        """Encodes the tensor maps of a buffer again after its address has changed."""
        for number, tensor_map in enumerate(self.kernel.maps):
            if tensor_map.slot == slot:
                tensor_map.encode(self.addresses[self.position[slot]], self.map_start + MAP_BYTES * number)

    def node_params(self) -> KernelNodeParams:
        kernel = self.kernel
        grid, block = (ctypes.c_uint * 3)(*kernel.grid), (ctypes.c_uint * 3)(*kernel.block)
        function = ctypes.c_void_p(int(kernel.function))
        return KernelNodeParams(function, grid, block, kernel.shared_bytes, self.arguments, None, None, None)


class CudaRunner(Runner):
    """A prepared list. Memory given at the start is kept alive here; the caller keeps memory that is given later."""

    def __init__(self, card: Card, launches: Sequence[tuple[CudaKernel, Sequence[Address]]]) -> None:
        self.card = card
        self.launches = [_Launch(kernel, arguments, card.stream) for kernel, arguments in launches]
        self.memories: list[list[Any]] = [[memory for memory, _ in arguments] for _, arguments in launches]
        self.launch_kernel = card.library.native("cuLaunchKernelEx")
        self.exclusive: dict[
            tuple[int, int], int
        ] = {}  # a launch and its parameter -> the index of its exclusive memory of a run
        self.graph: _Graph | None = None
        self.runs = 0

    def run(self) -> None:
        self.card.enter()
        self.runs += 1
        if self.graph is None and len(self.launches) >= MIN_LAUNCHES and self.runs >= MIN_RUNS:
            self.graph = _Graph(self.card, self.launches, self._orders())
        if self.graph is not None:
            self.graph.run()
            return
        for launch in self.launches:
            status = self.launch_kernel(*launch.call)
            if status:
                self.card.library.fail("cuLaunchKernelEx", status)

    def run_timed(self) -> float:
        return self.card.seconds(self.run)

    def bind(
        self,
        bindings: Sequence[Binding],
        variables: Sequence[VariableBinding] = (),
        exclusive: frozenset[int] = frozenset(),
    ) -> Callable[[Sequence[Any]], None]:
        self.exclusive = {(launch, param): index for index, launch, param, _ in bindings if index in exclusive}
        if len(self.launches) == 1 and not variables and not self.launches[0].kernel.maps:
            return self._bind_launch(bindings)
        return super().bind(bindings, variables, exclusive)

    def _bind_launch(self, bindings: Sequence[Binding]) -> Callable[[Sequence[Any]], None]:
        """`bind` of a single launch, in one function: a call takes as long as the driver takes for the launch."""
        (launch,) = self.launches
        position = launch.position
        given = [(index, position[param], offset) for index, _, param, offset in bindings if param in position]
        for _, _, param, _ in bindings:
            self.memories[0][param] = None
        addresses, enter, launch_kernel, call = launch.addresses, self.card.enter, self.launch_kernel, launch.call

        def run(memories: Sequence[Any]) -> None:
            for index, number, offset in given:
                addresses[number] = memories[index].address + offset
            enter()
            status = launch_kernel(*call)
            if status:
                self.card.library.fail("cuLaunchKernelEx", status)

        return run

    def set_address(self, launch: int, param: int, address: Address) -> None:
        memory, offset = address
        if self.memories[launch][param] is not None:
            # From now on this parameter may be any memory: the graph is made again with that in mind.
            self.memories[launch][param] = self.graph = None
        chosen = self.launches[launch]
        position = chosen.position.get(param)
        start = memory.address + offset
        # Most memories of a run, such as weights, are those of the run before: their launches stay as they are.
        if position is not None and chosen.addresses[position] != start:
            chosen.addresses[position] = start
            chosen.encode_maps(param)
            if self.graph is not None:
                self.graph.changed.add(launch)

    def set_variable(self, launch: int, number: int, value: int) -> None:
        values = self.launches[launch].values
        if values[number] == value:
            return
        values[number] = value
        if self.graph is not None:
            self.graph.changed.add(launch)

    def _orders(self) -> list[list[int]]:
        """For each launch the earlier ones that it waits for, without those that these wait for themselves."""
        accesses = [self._accesses(number) for number in range(len(self.launches))]
        orders: list[list[int]] = []
        before: list[int] = []  # for each launch a bit for every one that has ended when it starts
        for number, own in enumerate(accesses):
            needed: list[int] = []
            done = 0
            for earlier in range(number - 1, -1, -1):
                if not done >> earlier & 1 and any(a.conflicts(b) for a in own for b in accesses[earlier]):
                    needed.append(earlier)
                    done |= before[earlier] | 1 << earlier
            orders.append(needed)
            before.append(done)
        return orders

    def _accesses(self, number: int) -> list[_Access]:
        launch = self.launches[number]
        kernel = launch.kernel
        return [
            _Access(
                address,
                address + size,
                slot in kernel.written,
                self.memories[number][slot] is None,
                self.exclusive.get((number, slot)),
            )
            for slot, address, size in zip(kernel.slots, launch.addresses, kernel.sizes, strict=True)
        ]


class _Access(NamedTuple):
    """Bytes that a launch reads or writes. A memory that is given at every run may alias any other, unless it is an
    exclusive one, which has a number."""

    start: int
    end: int
    is_written: bool
    is_given: bool
    exclusive: int | None = None

    def conflicts(self, other: _Access) -> bool:
        if not (self.is_written or other.is_written):
            return False
        if self.exclusive != other.exclusive:
            return False
        if self.exclusive is not None:
            return self.start < other.end and other.start < self.end
        return self.is_given or other.is_given or (self.start < other.end and other.start < self.end)


class _Graph:
    """The launches as a CUDA graph, each after those in its list of `orders`."""

    def __init__(self, card: Card, launches: Sequence[_Launch], orders: Sequence[Sequence[int]]) -> None:
        self.card = card
        self.params = [launch.node_params() for launch in launches]
        self.given = [card.library.node_params(params) for params in self.params]
        self.changed: set[int] = set()
        graph = card.library.call("cuGraphCreate", 0)
        self.nodes: list[Any] = []
        for params, needed in zip(self.params, orders, strict=True):
            self.nodes.append(card.library.add_kernel_node(graph, [self.nodes[number] for number in needed], params))
        self.executable = card.library.call("cuGraphInstantiate", graph, 0)
        self.graph = graph
        self.launch = card.library.native("cuGraphLaunch")
        self.call = (int(self.executable), int(card.stream))
        self.set_params = card.library.raw("cuGraphExecKernelNodeSetParams")

    def run(self) -> None:
        for number in self.changed:
            (status,) = self.set_params(self.executable, self.nodes[number], self.given[number])
            if int(status):
                self.card.library.fail("cuGraphExecKernelNodeSetParams", int(status))
        self.changed.clear()
        status = self.launch(*self.call)
        if status:
            self.card.library.fail("cuGraphLaunch", status)

    def __del__(self) -> None:
        # The driver destroys a running graph when it has ended; the end of the process frees all of them.
        if hasattr(self, "launch") and not sys.is_finalizing():
            self.card.library.raw("cuGraphExecDestroy")(self.executable)
            self.card.library.raw("cuGraphDestroy")(self.graph)
