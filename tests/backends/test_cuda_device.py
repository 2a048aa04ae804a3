"""What stands on the CUDA driver, on a driver made of host memory: memory, copies, launches, graphs, and the reasons
given where there is no driver. The card itself is tested by the op table, where there is one."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import numpy as np
import pytest

from tests.backends.fake_cuda import FakeCard
from tilewright.backends.cuda import card as card_module
from tilewright.backends.cuda.card import Card
from tilewright.backends.cuda.launches import CudaKernel, CudaRunner
from tilewright.backends.cuda.library import SIGNATURES, CudaError, LaunchConfig, Library, system_function
from tilewright.backends.cuda.memory import STAGING_BUFFERS, STAGING_BYTES, Pool, Staging, block_size
from tilewright.runtime.device import Unavailable


def add_one(target: int, source: int) -> None:
    ctypes.c_int.from_address(target).value = ctypes.c_int.from_address(source).value + 1


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeCard:
    library = FakeCard(kernels={"add_one": add_one})
    monkeypatch.setattr(card_module, "driver_library", lambda: library)
    return library


# ---------------------------------------------------------------- memory


@pytest.mark.parametrize(
    ("nbytes", "expected"),
    [(1, 512), (512, 512), (513, 1024), (4096, 4096), (4097, 4608), (1 << 30, 1 << 30), ((1 << 30) + 1, 9 << 27)],
)
def test_blocks_waste_little(nbytes: int, expected: int) -> None:
    assert block_size(nbytes) == expected


def test_a_dropped_block_serves_the_next_request(fake: FakeCard) -> None:
    pool = Pool(Card(0))
    address = pool.allocate(1000).address
    assert pool.allocate(900).address == address
    kept = pool.allocate(1000)
    assert kept.address == address
    assert pool.allocate(1000).address != address
    assert fake.counted("cuMemAlloc") == 2


def test_kept_blocks_go_back_to_the_card_before_it_is_full(fake: FakeCard) -> None:
    pool = Pool(Card(0))
    del [pool.allocate(size) for size in (20 << 20, 40 << 20)][:]
    assert pool.allocate(60 << 20).nbytes == 60 << 20
    assert fake.used() == 60 << 20
    with pytest.raises(MemoryError, match="of 67108864 bytes of fake card are free"):
        pool.allocate(65 << 20)


@pytest.mark.parametrize(
    "nbytes", [1, 1000, STAGING_BYTES, 3 * STAGING_BYTES + 5, (STAGING_BUFFERS + 2) * STAGING_BYTES]
)
def test_bytes_come_back_as_they_went(fake: FakeCard, nbytes: int) -> None:
    card = Card(0)
    staging, memory = Staging(card), Pool(card).allocate(nbytes + 16)
    data = np.random.default_rng(nbytes).integers(0, 256, nbytes).astype(np.uint8)
    staging.copy_in(memory.address + 16, memoryview(data.tobytes()))
    found = bytearray(nbytes)
    staging.copy_out(memory.address + 16, memoryview(found))
    assert bytes(found) == data.tobytes()


# ---------------------------------------------------------------- launches


def chain(fake: FakeCard, card: Card, length: int) -> tuple[CudaRunner, list[ctypes.c_int], list[object]]:
    """Numbers, each of which the list of launches makes one more than the number before it."""
    function = card.library.call("cuModuleGetFunction", 0, b"add_one")
    kernel = CudaKernel(function, (1, 1, 1), (32, 1, 1), 0, (0, 2), written=(0,), sizes=(4, 4))
    numbers = [ctypes.c_int(0) for _ in range(length + 1)]
    memories = [Block(ctypes.addressof(number)) for number in numbers]
    unused = Block(0)
    places = [((memories[n + 1], 0), (unused, 0), (memories[n], 0)) for n in range(length)]
    return CudaRunner(card, [(kernel, place) for place in places]), numbers, list(memories)


class Block:
    def __init__(self, address: int) -> None:
        self.address = address


@pytest.mark.parametrize("length", [1, 5])
def test_a_list_runs_in_order_again_and_again(fake: FakeCard, length: int) -> None:
    runner, numbers, _ = chain(fake, Card(0), length)
    for start in (0, 10, 20):
        numbers[0].value = start
        runner.run()
        assert numbers[-1].value == start + length
    assert fake.counted("cuGraphInstantiate") == (1 if length > 1 else 0)
    assert fake.counted("cuGraphLaunch") == (2 if length > 1 else 0)


@pytest.mark.parametrize("length", [1, 3])
@pytest.mark.parametrize("runs_before", [0, 1, 3])
def test_a_launch_takes_another_buffer(fake: FakeCard, length: int, runs_before: int) -> None:
    runner, numbers, _ = chain(fake, Card(0), length)
    for _ in range(runs_before):
        runner.run()
    source, target = ctypes.c_int(100), ctypes.c_int(0)
    runner.set_address(0, 2, (Block(ctypes.addressof(source)), 0))
    runner.set_address(length - 1, 0, (Block(ctypes.addressof(target) - 4), 4))
    runner.set_address(0, 1, (Block(12345), 0))  # a buffer that the kernel does not take
    before = numbers[-1].value
    runner.run()
    assert target.value == 100 + length
    assert numbers[-1].value == before


@pytest.mark.parametrize("length", [1, 3])
def test_each_run_of_a_bound_list_takes_its_own_buffers(fake: FakeCard, length: int) -> None:
    runner, _numbers, _ = chain(fake, Card(0), length)
    # The memories of a run: what is read, from its second number on; one that the kernel does not take; the result.
    run = runner.bind([(0, 0, 2, 4), (1, 0, 1, 0), (2, length - 1, 0, 0)])
    for start in (5, 50, 500, 5000):
        source, target = (ctypes.c_int * 2)(0, start), ctypes.c_int(0)
        run([Block(ctypes.addressof(source)), Block(12345), Block(ctypes.addressof(target))])
        assert target.value == start + length


@pytest.mark.parametrize("is_bound", [False, True])
def test_a_launch_that_the_driver_refuses_is_an_error(fake: FakeCard, is_bound: bool) -> None:
    fake.native = lambda name: lambda *_: 700 if name == "cuLaunchKernelEx" else 0  # type: ignore[method-assign]
    runner, numbers, _ = chain(fake, Card(0), 1)
    bound = runner.bind([(0, 0, 2, 0)])
    with pytest.raises(CudaError, match=r"cuLaunchKernelEx: CODE_700.*\(700\)"):
        bound([Block(ctypes.addressof(numbers[0]))]) if is_bound else runner.run()


def test_a_buffer_that_stays_where_it_is_costs_a_graph_nothing(fake: FakeCard) -> None:
    runner, numbers, _ = chain(fake, Card(0), 3)
    source, other = ctypes.c_int(100), ctypes.c_int(7)
    for _ in range(4):
        runner.set_address(0, 2, (Block(ctypes.addressof(source)), 0))
        runner.run()
    assert numbers[-1].value == 103
    assert fake.counted("cuGraphLaunch") > 1
    assert fake.counted("cuGraphExecKernelNodeSetParams") == 0
    runner.set_address(0, 2, (Block(ctypes.addressof(other)), 0))
    runner.run()
    assert numbers[-1].value == 10
    assert fake.counted("cuGraphExecKernelNodeSetParams") == 1


def test_launches_of_a_graph_wait_for_the_memory_they_touch_and_for_nothing_else(fake: FakeCard) -> None:
    card = Card(0)
    function = card.library.call("cuModuleGetFunction", 0, b"add_one")
    kernel = CudaKernel(function, (1, 1, 1), (32, 1, 1), 0, (0, 1), written=(0,), sizes=(4, 4))
    numbers = (ctypes.c_int * 6)(7, 0, 0, 0, 0, 0)
    memory = Block(ctypes.addressof(numbers))

    def launch(target: int, source: int) -> tuple[CudaKernel, list[tuple[Block, int]]]:
        return kernel, [(memory, 4 * target), (memory, 4 * source)]

    # Two chains from number 0; the last launch overwrites what the first of the second chain has read.
    runner = CudaRunner(card, [launch(1, 0), launch(2, 1), launch(3, 0), launch(4, 3), launch(0, 5)])
    for _ in range(3):
        runner.run()
        assert list(numbers) in ([1, 8, 9, 8, 9, 0], [1, 2, 3, 2, 3, 0])
    (orders,) = fake.orders.values()
    assert orders == [[], [0], [], [2], [2, 0]]
    # A buffer that is given anew may be any: what writes waits for what reads it.
    runner.set_address(3, 1, (memory, 4 * 3))
    runner.run()
    assert list(fake.orders.values())[-1] == [[], [0], [], [2, 1], [3]]
    assert list(numbers) == [1, 2, 3, 2, 3, 0]


def test_results_of_a_run_are_waited_for_by_who_touches_them_alone(fake: FakeCard) -> None:
    """A result is memory of its own, whatever its address will be; an argument may be any memory."""
    card = Card(0)
    function = card.library.call("cuModuleGetFunction", 0, b"add_one")
    kernel = CudaKernel(function, (1, 1, 1), (32, 1, 1), 0, (0, 1), written=(0,), sizes=(4, 4))
    state = (ctypes.c_int * 4)(7, 0, 0, 0)
    memory = Block(ctypes.addressof(state))

    def launch(target: int, source: int) -> tuple[CudaKernel, list[tuple[Block, int]]]:
        return kernel, [(memory, 4 * target), (memory, 4 * source)]

    # first = state[0] + 1; state[1] = first + 1; second = state[0] + 1; state[2] = second + 1; state[3] = given + 1
    runner = CudaRunner(card, [launch(0, 0), launch(1, 0), launch(0, 0), launch(2, 0), launch(3, 0)])
    bindings = [(0, 0, 0, 0), (0, 1, 1, 0), (1, 2, 0, 4), (1, 3, 1, 4), (2, 4, 1, 0)]
    run = runner.bind(bindings, exclusive=frozenset({0, 1}))
    for start in (7, 20, 30):
        state[0] = start
        results, given = [(ctypes.c_int * 2)() for _ in range(2)], ctypes.c_int(start)
        run([Block(ctypes.addressof(each)) for each in (*results, given)])
        assert [results[0][0], results[1][1], *state] == [start + 1] * 2 + [start, start + 2, start + 2, start + 1]
    # The last one reads what may be any memory but a result: it waits for both that write the state.
    assert list(fake.orders.values())[-1] == [[], [0], [], [2], [3, 1]]


def test_the_time_is_that_of_the_card(fake: FakeCard) -> None:
    runner, numbers, _ = chain(fake, Card(0), 2)
    assert runner.run_timed() == pytest.approx(2e-3)
    assert numbers[-1].value == 2


# ---------------------------------------------------------------- the driver's functions


def test_a_failure_names_the_function_and_the_reason() -> None:
    answers = {"cuMemFree": (700,), "cuGetErrorName": (0, b"CUDA_ERROR_ILLEGAL_ADDRESS"), "cuGetErrorString": (0, b"x")}
    library = Library(lambda name: lambda *_: answers[name], "fake")
    with pytest.raises(CudaError, match=r"cuMemFree: CUDA_ERROR_ILLEGAL_ADDRESS: x \(700\)") as caught:
        library.call("cuMemFree", 0)
    assert caught.value.code == 700


def test_ctypes_puts_results_where_the_driver_wants_them() -> None:
    """Most functions give results through their first arguments, those about errors through their last."""

    def allocate(place: int, nbytes: int) -> int:
        ctypes.c_uint64.from_address(place).value = nbytes + 1
        return 0

    names = {7: b"code 7"}  # the driver's names live as long as the process

    def error_name(code: int, place: int) -> int:
        ctypes.c_char_p.from_address(place).value = names[code]
        return 0

    pointer = ctypes.c_void_p
    library = SimpleNamespace(
        cuMemAlloc_v2=ctypes.CFUNCTYPE(ctypes.c_int, pointer, ctypes.c_size_t)(allocate),
        cuGetErrorName=ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, pointer)(error_name),
    )
    assert system_function(library, "cuMemAlloc")(41) == (0, 42)
    assert system_function(library, "cuGetErrorName")(7) == (0, b"code 7")


def test_a_kernel_that_writes_a_buffer_under_two_names_is_known() -> None:
    kernel = CudaKernel(0, (1, 1, 1), (1, 1, 1), 0, (0, 1, 3), written=(0,))
    places = [(Block(address), 0) for address in (64, 128, 64, 192)]
    assert not kernel.shares_written(places)  # slot 2 has the same memory, and the kernel does not take it
    assert kernel.shares_written([*places[:3], (Block(32), 32)])
    assert not kernel._replace(written=()).shares_written([*places[:3], (Block(32), 32)])


def test_a_card_that_is_not_there_is_refused(fake: FakeCard) -> None:
    with pytest.raises(Unavailable, match="there are 1 NVIDIA cards"):
        Card(1)


def test_the_shape_of_a_launch_is_where_the_driver_reads_it() -> None:
    driver = pytest.importorskip("cuda.bindings.driver", reason="cuda-bindings is not installed")
    config = LaunchConfig((ctypes.c_uint * 3)(2, 3, 4), (ctypes.c_uint * 3)(5, 6, 7), 8, 9, None, 0)
    read = driver.CUlaunchConfig(_ptr=ctypes.addressof(config))
    assert (read.gridDimX, read.gridDimY, read.gridDimZ) == (2, 3, 4)
    assert (read.blockDimX, read.blockDimY, read.blockDimZ) == (5, 6, 7)
    assert (read.sharedMemBytes, int(read.hStream), read.numAttrs) == (8, 9, 0)


def test_every_function_that_ctypes_would_call_is_one_of_the_bindings() -> None:
    driver = pytest.importorskip("cuda.bindings.driver", reason="cuda-bindings is not installed")
    missing = [name for name in SIGNATURES if not hasattr(driver, name)]
    assert not missing
