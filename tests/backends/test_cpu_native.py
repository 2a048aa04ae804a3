"""The native side of the CPU backend: host facts, compiling and loading code, the thread pool, host memory.

Kernels here are hand-written LLVM IR that count every call and every element, so a lost or doubled chunk shows.
"""

from __future__ import annotations

import ctypes
import gc
import os
import random
import struct
import subprocess
import sys
import textwrap
import threading
import time
import warnings
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tilewright import Device
from tilewright.backends.cpu.code import elf, llvm, llvm_library
from tilewright.backends.cpu.host import memory, system
from tilewright.backends.cpu.host.processors import Processor, this_processor
from tilewright.backends.cpu.pool import ir as pool_ir
from tilewright.backends.cpu.pool import threads as pool

ATTRIBUTES = llvm.FUNCTION_ATTRIBUTES
# Seconds after which what has not ended is taken to hang: more than a machine that does other things needs.
PATIENCE = 180
INT64 = ctypes.c_int64

# square: out[i] += in[i] * in[i], one element at a time, and out[-1] counts the calls.
SQUARE = f"""
define void @square(ptr %buffers, i64 %lo, i64 %hi) {ATTRIBUTES} {{
entry:
  %out = load ptr, ptr %buffers, align 8
  %slot = getelementptr ptr, ptr %buffers, i64 1
  %in = load ptr, ptr %slot, align 8
  %calls = getelementptr i64, ptr %out, i64 -1
  %old = atomicrmw add ptr %calls, i64 1 monotonic
  br label %loop
loop:
  %i = phi i64 [ %lo, %entry ], [ %next, %loop ]
  %source = getelementptr i64, ptr %in, i64 %i
  %value = load i64, ptr %source, align 8
  %squared = mul i64 %value, %value
  %target = getelementptr i64, ptr %out, i64 %i
  %before = load i64, ptr %target, align 8
  %sum = add i64 %before, %squared
  store i64 %sum, ptr %target, align 8
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %hi
  br i1 %more, label %loop, label %exit
exit:
  ret void
}}

; out[0] += 1 after reading it twice with a delay: two threads inside at once lose an update.
define void @step(ptr %buffers, i64 %lo, i64 %hi) {ATTRIBUTES} {{
entry:
  %out = load ptr, ptr %buffers, align 8
  %value = load volatile i64, ptr %out, align 8
  br label %wait
wait:
  %i = phi i64 [ 0, %entry ], [ %next, %wait ]
  %again = load volatile i64, ptr %out, align 8
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, 50
  br i1 %more, label %wait, label %exit
exit:
  %one_more = add i64 %value, 1
  store volatile i64 %one_more, ptr %out, align 8
  ret void
}}

; every element of out becomes 1 + the sum of the whole of in: right only if the command before is complete
define void @gather(ptr %buffers, i64 %lo, i64 %hi) {ATTRIBUTES} {{
entry:
  %out = load ptr, ptr %buffers, align 8
  %slot = getelementptr ptr, ptr %buffers, i64 1
  %in = load ptr, ptr %slot, align 8
  %slot_2 = getelementptr ptr, ptr %buffers, i64 2
  %size = load i64, ptr %slot_2, align 8
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %sum = phi i64 [ 1, %entry ], [ %added, %loop ]
  %source = getelementptr i64, ptr %in, i64 %i
  %value = load i64, ptr %source, align 8
  %added = add i64 %sum, %value
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %size
  br i1 %more, label %loop, label %write
write:
  %k = phi i64 [ %lo, %loop ], [ %k_next, %write ]
  %target = getelementptr i64, ptr %out, i64 %k
  store i64 %added, ptr %target, align 8
  %k_next = add i64 %k, 1
  %k_more = icmp slt i64 %k_next, %hi
  br i1 %k_more, label %write, label %exit
exit:
  ret void
}}
"""
FILL = f"""
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
define void @fill(ptr %buffers, i64 %lo, i64 %hi) {ATTRIBUTES} {{
  %out = load ptr, ptr %buffers, align 8
  %start = getelementptr i8, ptr %out, i64 %lo
  %size = sub i64 %hi, %lo
  call void @llvm.memset.p0.i64(ptr %start, i8 7, i64 %size, i1 false)
  ret void
}}
"""
SCALE = f"""
define void @scale(ptr %buffers, i64 %lo, i64 %hi) {ATTRIBUTES} {{
  %out = load ptr, ptr %buffers, align 8
  %value = load <16 x float>, ptr %out, align 4
  %scaled = fmul <16 x float> %value, <float 1.0, float 2.0, float 3.0, float 4.0, float 5.0, float 6.0, float 7.0,
    float 8.0, float 9.0, float 10.0, float 11.0, float 12.0, float 13.0, float 14.0, float 15.0, float 16.0>
  store <16 x float> %scaled, ptr %out, align 4
  ret void
}}
"""


@pytest.fixture(scope="module")
def kernels() -> llvm.LoadedCode:
    return llvm.load_object(llvm.compile_ir(SQUARE), "square", "step", "gather")


@pytest.fixture(scope="module", params=["native", "condition"])
def pool_object(request: pytest.FixtureRequest) -> bytes:
    """The pool as this system has it (a futex on Linux), and the one with a mutex and a condition variable."""
    system = None if request.param == "native" else "other"
    return llvm.compile_ir(pool_ir.pool_ir(system=system), optimise=0)


@pytest.fixture
def threads(pool_object: bytes) -> Iterator[pool.Pool]:
    made = pool.Pool(pool_object, 4)
    yield made
    made.close()


def call(code: llvm.LoadedCode, *buffers: int, extent: int = 1) -> None:
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, INT64, INT64)(code.address)
    function((ctypes.c_void_p * len(buffers))(*buffers), 0, extent)


class Squares:
    """Buffers of `square`: checks that each element was written once."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.source = (INT64 * size)(*range(size))
        self.result = (INT64 * (size + 1))()

    @property
    def addresses(self) -> list[int]:
        return [ctypes.addressof(self.result) + 8, ctypes.addressof(self.source)]

    def check(self, times: int = 1) -> int:
        """The number of calls there were, after a check of the values."""
        assert list(self.result)[1:] == [times * i * i for i in range(self.size)]
        return int(self.result[0])


# ---- host ----


def fake_files(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/cpu.max": "150000 100000\n"}, 2),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/cpu.max": "max 100000\n"}, system.UNLIMITED),
        # the parent's limit holds for the child as well
        (
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/b/cpu.max": "800000 100000\n",
                "sys/fs/cgroup/a/cpu.max": "300000 100000\n",
            },
            3,
        ),
        # in a container the path is the host's, and the files lie at the root of the mount
        ({"proc/self/cgroup": "0::/docker/x\n", "sys/fs/cgroup/cpu.max": "50000 100000\n"}, 1),
        (
            {
                "proc/self/cgroup": "4:cpu,cpuacct:/k\n3:memory:/k\n",
                "sys/fs/cgroup/cpu,cpuacct/k/cpu.cfs_quota_us": "400000\n",
                "sys/fs/cgroup/cpu,cpuacct/k/cpu.cfs_period_us": "100000\n",
            },
            4,
        ),
        (
            {
                "proc/self/cgroup": "1:cpu:/\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            system.UNLIMITED,
        ),
        ({}, system.UNLIMITED),
        ({"proc/self/cgroup": "nonsense\n0::\n", "sys/fs/cgroup/cpu.max": "what\n"}, system.UNLIMITED),
    ],
)
def test_cpu_quota(tmp_path: Path, files: dict[str, str], cores: int) -> None:
    assert system.cpu_quota(fake_files(tmp_path, files)) == cores


def test_memory_limits_of_both_cgroup_versions(tmp_path: Path) -> None:
    meminfo = "MemTotal:       1000 kB\nMemAvailable:    800 kB\n"
    second = fake_files(
        tmp_path / "second",
        {
            "proc/meminfo": meminfo,
            "proc/self/cgroup": "0::/a\n",
            "sys/fs/cgroup/a/memory.max": "500000\n",
            "sys/fs/cgroup/a/memory.current": "300000\n",
            "sys/fs/cgroup/a/memory.stat": "anon 1\ninactive_file 50000\n",
        },
    )
    first = fake_files(
        tmp_path / "first",
        {
            "proc/meminfo": meminfo,
            "proc/self/cgroup": "3:memory:/a\n",
            "sys/fs/cgroup/memory/a/memory.limit_in_bytes": "9223372036854771712\n",
            "sys/fs/cgroup/memory/a/memory.usage_in_bytes": "1\n",
        },
    )
    assert (system.memory_total(second), system.memory_available(second)) == (500000, 250000)
    assert (system.memory_total(first), system.memory_available(first)) == (1000 * 1024, 800 * 1024)


def test_usable_cores_takes_one_thread_of_a_core_and_lets_the_request_win(tmp_path: Path) -> None:
    processors = (
        sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    )
    siblings = {f"sys/devices/system/cpu/cpu{i}/topology/thread_siblings_list": "0-999\n" for i in processors}
    assert system.usable_cores(root=tmp_path / "nothing") == len(processors)
    assert system.usable_cores(root=fake_files(tmp_path, siblings)) == 1
    assert [system.usable_cores(requested, tmp_path) for requested in (1, 7, 0, -3)] == [1, 7, 1, 1]


@pytest.mark.parametrize(
    ("machine", "flags", "vector", "half"),
    [
        ("x86_64", "flags : sse2 avx avx2 f16c avx512f", (64, 32), True),
        ("x86_64", "flags\t\t: sse2 avx avx2 f16c", (32, 16), True),
        ("x86_64", "flags : sse2", (16, 16), False),
        ("aarch64", "Features : fp asimd", (16, 32), True),
    ],
)
def test_vector_facts(tmp_path: Path, machine: str, flags: str, vector: tuple[int, int], half: bool) -> None:
    root = fake_files(tmp_path, {"proc/cpuinfo": f"processor : 0\n{flags}\n\nprocessor : 1\nflags : none\n"})
    found = Processor(machine, system.cpu_flags(root))
    assert found.vector() == vector
    assert found.has_half_casts() is half


def test_host_and_llvm_agree() -> None:
    if sys.platform == "linux":
        expected = (64, 32) if llvm.host_has("avx512f") else (32, 16) if llvm.host_has("avx2") else (16, 16)
        assert this_processor().vector() == ((16, 32) if system.machine() == "aarch64" else expected)
    assert llvm.cpu_name()
    assert not llvm.host_has("no-such-feature")


# ---- compile and load ----


def test_object_round_trip_with_constants_and_libc() -> None:
    values = (ctypes.c_float * 16)(*[0.5] * 16)
    call(llvm.load_object(llvm.compile_ir(SCALE), "scale"), ctypes.addressof(values))
    assert list(values) == [0.5 * (i + 1) for i in range(16)]
    for level in range(3):
        data = ctypes.create_string_buffer(300)
        call(llvm.load_object(llvm.compile_ir(FILL, level), "fill"), ctypes.addressof(data), extent=299)
        assert data.raw == b"\7" * 299 + b"\0"


def test_wide_vectors_use_the_widest_registers() -> None:
    text = llvm.assembly(SCALE)
    if llvm.host_has("avx512f"):
        assert "zmm" in text
    assert "scale:" in text


@pytest.mark.parametrize(
    ("text", "quoted"),
    [
        ("define void @f() {\n  %x = add i32 1, 2\n  %y = wrong i32\n  ret void\n}", ">     3 |   %y = wrong i32"),
        ("define i32 @f() {\n  ret void\n}", ">     2 |   ret void"),
        ("define void @f() {\n  br label %a\na:\n  %x = add i32 %y, 1\n  %y = add i32 1, 1\n  ret void\n}", "%x = add"),
    ],
)
def test_refused_text_is_quoted(text: str, quoted: str) -> None:
    with pytest.raises(llvm.CompileFailure) as caught:
        llvm.compile_ir(text)
    assert quoted in str(caught.value)


def test_unknown_symbols_are_named() -> None:
    data = llvm.compile_ir("declare void @no_such()\ndefine void @f() {\n  call void @no_such()\n  ret void\n}")
    with pytest.raises(llvm.CompileFailure, match="no_such"):
        llvm.load_object(data, "f")
    with pytest.raises(llvm.CompileFailure, match="absent"):
        llvm.load_object(data, "absent")
    with pytest.raises(llvm.CompileFailure, match="writable globals"):
        llvm.load_object(llvm.compile_ir("@g = global i32 5\ndefine ptr @f() {\n  ret ptr @g\n}"), "f")


def test_imports_are_bound_to_the_given_address() -> None:
    body = "define void @f(ptr %b, i64 %lo, i64 %hi) {\n  store i64 41, ptr @cell\n  ret void\n}"
    data = llvm.compile_ir(f"@cell = external global i64\n{body}")
    cells = (INT64 * 2)()
    loaded = [llvm.load_object(data, "f", imports={"cell": ctypes.addressof(cells) + 8 * i}) for i in range(2)]
    call(loaded[1])
    assert list(cells) == [0, 41]


@pytest.mark.skipif(sys.platform != "linux", reason="kernels are ELF objects on Linux alone")
def test_damaged_objects_raise() -> None:
    good = llvm.compile_ir(SQUARE + FILL)
    for data in (b"", b"\x7fELF", good[:100], good[:-1], b"garbage" * 100, b"\0" + good[1:], bytes(len(good))):
        with pytest.raises(llvm.CompileFailure):
            llvm.load_object(data, "square")
    generator = random.Random(3)
    refused = 0
    for _ in range(1500):
        damaged = bytearray(good)
        for _ in range(generator.randint(1, 4)):
            damaged[generator.randrange(len(good))] = generator.randrange(256)
        try:
            llvm.load_object(bytes(damaged), "square")
        except llvm.CompileFailure:
            refused += 1
    assert refused > 300


@pytest.mark.skipif(sys.platform != "linux", reason="kernels are ELF objects on Linux alone")
def test_code_is_unmapped_with_its_last_reference() -> None:
    def mapped(address: int) -> bool:
        lines = Path("/proc/self/maps").read_text().splitlines()
        return any(int(low, 16) <= address < int(high, 16) for low, high in (s.split()[0].split("-") for s in lines))

    code = llvm.load_object(llvm.compile_ir(FILL), "fill")
    address = code.address
    assert mapped(address)
    del code
    assert not mapped(address)


def test_loading_a_cached_object_does_not_import_llvmlite(tmp_path: Path) -> None:
    if sys.platform != "linux":
        pytest.skip("kernels are ELF objects on Linux alone")
    (tmp_path / "object").write_bytes(llvm.compile_ir(FILL))
    script = f"""
        import sys
        from tilewright.backends.cpu.code import llvm
        llvm.load_object(open({str(tmp_path / "object")!r}, "rb").read(), "fill")
        print(llvm.toolchain() == {llvm.toolchain()!r}, "llvmlite.binding" in sys.modules, "numpy" in sys.modules)
    """
    assert run_script(script) == "True False False"


def test_a_compilation_takes_the_library_and_not_the_modules_of_llvmlite() -> None:
    script = f"""
        import sys
        from tilewright.backends.cpu.code import llvm
        made = llvm.compile_ir({FILL!r})
        print(len(made) > 100, "llvmlite.binding" in sys.modules)
    """
    assert run_script(script) == "True False"


def test_the_library_tells_of_this_machine_what_llvmlite_tells() -> None:
    binding = llvm._binding()
    assert llvm_library.host_name() == binding.get_host_cpu_name()
    assert llvm_library.host_features() == binding.get_host_cpu_features().flatten()
    target = binding.Target.from_triple(llvm_library.process_triple())
    theirs = target.create_target_machine(cpu=llvm_library.host_name(), opt=2, reloc="pic", codemodel="default")
    ours = llvm_library.new_machine(llvm_library.host_name(), "", 2)
    facts = llvm_library.process_triple(), llvm_library.data_layout(ours)
    assert facts == (theirs.triple, str(theirs.target_data))


@pytest.mark.parametrize("distance", [-(1 << 27) - 4, 1 << 27])
def test_a_branch_that_an_arm_instruction_does_not_reach_is_refused(distance: int) -> None:
    nearest = distance + 4 if distance < 0 else distance - 4
    image = bytearray(struct.pack("<I", 0x94000000))
    elf._relocate(image, "branch", 0, 0, 1 << 40, (1 << 40) + nearest)
    (word,) = struct.unpack("<I", image)
    assert (word & 0x3FFFFFF ^ 1 << 25) - (1 << 25) == nearest // 4
    with pytest.raises(llvm.CompileFailure, match=f"a branch over {distance} bytes"):
        elf._relocate(image, "branch", 0, 0, 1 << 40, (1 << 40) + distance)


def test_arm_relocations_reach_their_targets() -> None:
    """Builds an ARM image on any machine and decodes the patched instructions."""
    binding = llvm._binding()
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    try:
        target = binding.Target.from_triple("aarch64-unknown-linux-gnu")
    except RuntimeError:
        pytest.skip("this LLVM has no ARM target")
    machine = target.create_target_machine(cpu="neoverse-n1", reloc="pic", codemodel="default")
    text = """
    @cell = external global i8
    declare void @outside(ptr)
    define void @f() nounwind {
      call void @outside(ptr @cell)
      ret void
    }"""
    image = elf.ObjectFile(machine.emit_object(binding.parse_assembly(text)), "aarch64")
    base, addresses = 0x7F0012345000, {"cell": 0x123456789, "outside": 0xABCDEF0}
    code = image.build(base, addresses.__getitem__)
    words = struct.unpack_from("<8I", code)
    page, load, branch = (next(w for w in words if w & mask == value) for mask, value in (
        (0x9F000000, 0x90000000), (0xFFC00000, 0xF9400000), (0xFC000000, 0x94000000)))  # fmt: skip
    pages = ((page >> 5 & 0x7FFFF) << 2 | page >> 29 & 3) ^ 1 << 20
    slot = (base >> 12) + pages - (1 << 20) << 12 | (load >> 10 & 0xFFF) << 3
    assert struct.unpack_from("<Q", code, slot - base) == (addresses["cell"],)
    stub = 4 * words.index(branch) + 4 * (branch & 0x3FFFFFF)
    assert struct.unpack_from("<IIQ", code, stub) == (0x58000050, 0xD61F0200, addresses["outside"])


# ---- pool ----


def test_every_item_once_for_many_sizes_and_grains(threads: pool.Pool, kernels: llvm.LoadedCode) -> None:
    for size in (1, 2, 3, 5, 16, 63, 64, 65, 1000, 4097):
        for grain in (1, 2, 3, 7, 64, 1000, 5000):
            if size // grain > 1200:
                continue
            squares = Squares(size)
            commands = pool.CommandList(threads, [(kernels.symbols["square"], squares.addresses, size, grain)])
            for _ in range(3):
                commands.run()
            calls = squares.check(times=3)
            # Alone: one call each time. Shared: a call for each chunk.
            assert calls == 3 * (1 if size <= grain else -(-size // grain)), (size, grain)


def test_commands_run_one_after_the_other(threads: pool.Pool, kernels: llvm.LoadedCode) -> None:
    # Eight chunks of some microseconds each, all of which read what all of the chunks before them wrote.
    written, read = 8, 4000
    first, second = (INT64 * read)(), (INT64 * read)()
    addresses = [ctypes.addressof(first), ctypes.addressof(second)]
    steps = [(kernels.symbols["gather"], [addresses[i % 2], addresses[1 - i % 2], read], written, 1) for i in range(9)]
    commands = pool.CommandList(threads, steps)
    expected = 0
    for _ in range(9):
        expected = 1 + written * expected
    for _ in range(300):
        ctypes.memset(second, 0, 8 * read)
        commands.run()
        assert set(first[:written]) == {expected}


def test_a_small_command_runs_on_the_caller_without_workers(pool_object: bytes, kernels: llvm.LoadedCode) -> None:
    made = pool.Pool(pool_object, 4)
    counter = INT64()
    commands = pool.CommandList(made, [(kernels.symbols["step"], [ctypes.addressof(counter)], 8, 8)] * 1000)
    commands.run()
    assert counter.value == 1000
    assert made.started == 0


@pytest.mark.parametrize("count", [1, 0, -5])
def test_one_thread_means_no_workers(pool_object: bytes, kernels: llvm.LoadedCode, count: int) -> None:
    made = pool.Pool(pool_object, count)
    squares = Squares(1000)
    pool.CommandList(made, [(kernels.symbols["square"], squares.addresses, 1000, 10)]).run()
    assert squares.check() == 1
    assert made.started == 0


def test_empty_and_odd_commands(threads: pool.Pool, kernels: llvm.LoadedCode) -> None:
    squares = Squares(8)
    square = kernels.symbols["square"]
    pool.CommandList(threads, []).run()
    pool.CommandList(threads, [(square, squares.addresses, 0, 1), (square, squares.addresses, -4, 0)]).run()
    assert squares.result[0] == 0
    pool.CommandList(threads, [(square, squares.addresses, 8, 0)]).run()
    assert squares.check() == 8


def test_workers_take_part(threads: pool.Pool, kernels: llvm.LoadedCode) -> None:
    size = 20000
    squares = Squares(size)
    commands = pool.CommandList(threads, [(kernels.symbols["square"], squares.addresses, size, 100)])
    commands.run()
    squares.check()
    assert threads.started == 3


def test_python_threads_may_run_at_once(threads: pool.Pool, kernels: llvm.LoadedCode) -> None:
    failures: list[BaseException] = []

    def work() -> None:
        try:
            squares = Squares(3000)
            commands = pool.CommandList(threads, [(kernels.symbols["square"], squares.addresses, 3000, 50)] * 4)
            for _ in range(60):
                commands.run()
            squares.check(times=240)
        except BaseException as error:  # an assertion in a thread is lost unless it is carried over
            failures.append(error)

    workers = [threading.Thread(target=work) for _ in range(5)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(timeout=PATIENCE)
    assert not failures
    assert not any(worker.is_alive() for worker in workers)


def test_a_nested_call_does_not_deadlock(threads: pool.Pool, kernels: llvm.LoadedCode) -> None:
    squares = Squares(100)
    inner = pool.CommandList(threads, [(kernels.symbols["square"], squares.addresses, 100, 10)])
    calls: list[tuple[int, int]] = []

    def callback(_: int, low: int, high: int) -> None:
        calls.append((low, high))
        if low == 0:
            inner.run()

    native = ctypes.CFUNCTYPE(None, ctypes.c_void_p, INT64, INT64)(callback)
    address = ctypes.cast(native, ctypes.c_void_p).value
    assert address
    pool.CommandList(threads, [(address, [], 6, 2)]).run()
    assert sorted(calls) == [(0, 2), (2, 4), (4, 6)]
    assert squares.check() == 1  # the pool was taken, so the inner command ran alone


def test_workers_sleep_and_wake_up_again(threads: pool.Pool, kernels: llvm.LoadedCode) -> None:
    squares = Squares(5000)
    commands = pool.CommandList(threads, [(kernels.symbols["square"], squares.addresses, 5000, 100)])
    for _ in range(20):
        commands.run()
        time.sleep(0.002)
    squares.check(times=20)
    deadline = time.monotonic() + PATIENCE
    sleepers = ctypes.c_int32.from_address(threads._state.address + pool_ir.OFFSETS["SLEEPERS"])
    while sleepers.value != 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert sleepers.value == 3
    # The processor's time, of which a worker that turns in a loop takes all; of three spans, for Python has work too.
    assert min(processor_seconds_asleep() for _ in range(3)) < 0.05


def processor_seconds_asleep() -> float:
    before = time.process_time()
    time.sleep(0.1)
    return time.process_time() - before


class Meeting:
    """A kernel whose chunks wait until every thread of a pool has one. `first` is the first chunk of each thread, by
    the system's number of it; `cores` where each may run."""

    def __init__(self, threads: int) -> None:
        self.first: dict[int, int] = {}
        self.chunks: list[int] = []
        self.cores: dict[int, set[int]] = {}
        self._barrier = threading.Barrier(threads, timeout=PATIENCE)
        self._native = ctypes.CFUNCTYPE(None, ctypes.c_void_p, INT64, INT64)(self._run)
        self.address = ctypes.cast(self._native, ctypes.c_void_p).value or 0

    def _run(self, _: int, low: int, high: int) -> None:
        self.chunks.append(low)
        thread = threading.get_native_id()
        if thread not in self.first:
            self.first[thread] = low
            if hasattr(os, "sched_getaffinity"):
                self.cores[thread] = os.sched_getaffinity(0)
            self._barrier.wait()


def test_each_thread_begins_with_its_own_share(threads: pool.Pool) -> None:
    firsts = []
    for _ in range(3):
        meeting = Meeting(4)
        pool.CommandList(threads, [(meeting.address, [], 10, 1)]).run()
        assert sorted(meeting.chunks) == list(range(10))
        firsts.append(meeting.first)
    assert sorted(firsts[0].values()) == [0, 2, 5, 7]  # shares of 2, 3, 2 and 3
    assert firsts[0] == firsts[1] == firsts[2]


@pytest.mark.skipif(sys.platform != "linux", reason="on other systems nothing says where a thread wakes up")
def test_workers_sleep_off_the_core_of_the_caller_and_wake_up_free() -> None:
    made = pool.Pool(llvm.compile_ir(pool_ir.pool_ir(), optimise=0), 4)
    everywhere = os.sched_getaffinity(0)
    for _ in range(3):
        meeting = Meeting(4)
        pool.CommandList(made, [(meeting.address, [], 4, 1)]).run()
        assert list(meeting.cores.values()) == [everywhere] * 4
        workers = [thread for thread in meeting.first if thread != threading.get_native_id()]
        caller_core = ctypes.c_int32.from_address(made._state.address + pool_ir.OFFSETS["CALLER_CORE"]).value
        asleep = everywhere - {caller_core} or everywhere
        deadline = time.monotonic() + PATIENCE
        while any(os.sched_getaffinity(w) != asleep for w in workers) and time.monotonic() < deadline:
            time.sleep(0.001)
        assert [os.sched_getaffinity(worker) for worker in workers] == [asleep] * 3
    assert os.sched_getaffinity(0) == everywhere
    made.close()


def test_an_arm_fetches_code_anew_before_it_runs_a_chunk() -> None:
    """That it is needed cannot be shown: an emulator sees new code at once, and most processors nearly always."""
    before_call = pool_ir.pool_ir("aarch64", "linux").split("  call void %function(ptr %buffers, i64 %low")[0]
    assert before_call.endswith("  call void @llvm.aarch64.isb(i32 15)\n")
    assert "isb" not in pool_ir.pool_ir("x86_64", "linux")


def test_a_closed_pool_runs_alone(pool_object: bytes, kernels: llvm.LoadedCode) -> None:
    made = pool.Pool(pool_object, 3)
    squares = Squares(100)
    commands = pool.CommandList(made, [(kernels.symbols["square"], squares.addresses, 100, 10)])
    commands.run()
    made.close()
    made.close()
    commands.run()
    assert squares.check(times=2) == 10 + 1
    assert made.started == 0


def test_a_list_keeps_what_it_needs_alive(pool_object: bytes, kernels: llvm.LoadedCode) -> None:
    made = pool.Pool(pool_object, 3)
    gone = weakref.ref(made)
    squares = Squares(100)
    run = pool.CommandList(made, [(kernels.symbols["square"], squares.addresses, 100, 10)], owners=[squares]).run
    del made
    gc.collect()
    run()
    squares.check()
    assert gone() is not None
    del run
    gc.collect()
    assert gone() is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork a process")
def test_the_child_of_a_fork_starts_its_own_workers(threads: pool.Pool, kernels: llvm.LoadedCode) -> None:
    squares = Squares(2000)
    commands = pool.CommandList(threads, [(kernels.symbols["square"], squares.addresses, 2000, 50)])
    commands.run()
    stop = threading.Event()

    def keep_busy() -> None:
        own = Squares(2000)
        mine = pool.CommandList(threads, [(kernels.symbols["square"], own.addresses, 2000, 50)])
        while not stop.is_set():
            mine.run()

    busy = threading.Thread(target=keep_busy)  # so that the fork happens while the pool is in use
    busy.start()
    children = []
    try:
        for _ in range(5):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Python warns that forking with threads can deadlock: the point here
                child = os.fork()
            if child == 0:
                status = 1
                try:
                    # An emulator of processors has a thread of its own.
                    before, alone = threads.started, native_threads(1)
                    commands.run()
                    commands.run()
                    squares.check(times=3)
                    status = 0 if (before, threads.started, native_threads(4) - alone) == (0, 3, 3) else 2
                finally:
                    os._exit(status)
            children.append(child)
    finally:
        stop.set()
        busy.join()
    assert [wait_for(child) for child in children] == [0] * 5
    commands.run()
    squares.check(times=2)


def native_threads(otherwise: int) -> int:
    """The threads this process has, where the system tells."""
    tasks = Path("/proc/self/task")
    return len(list(tasks.iterdir())) if tasks.exists() else otherwise


def wait_for(child: int) -> int:
    """The child's exit status; a child that hangs is killed and counts as failed."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return -1


def run_script(text: str) -> str:
    """What a new interpreter prints; it must end by itself and without an error."""
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(text)], cwd=root, capture_output=True, text=True, timeout=PATIENCE
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


def test_interpreter_exit_with_a_daemon_thread_in_the_pool(tmp_path: Path) -> None:
    (tmp_path / "text").write_text(SQUARE)
    script = f"""
        import ctypes, threading, time
        from tilewright.backends.cpu.code import llvm
        from tilewright.backends.cpu.host import memory
        from tilewright.backends.cpu.pool import ir as pool_ir, threads as pool
        code = llvm.load_object(llvm.compile_ir(open({str(tmp_path / "text")!r}).read()), "square")
        made = pool.Pool(llvm.compile_ir(pool_ir.pool_ir(), 0), 3)
        source, result = memory.allocate(80000), memory.allocate(80008)
        source.view()[:] = bytes(80000)
        commands = pool.CommandList(made, [(code.address, [result.address + 8, source.address], 10000, 100)] * 50)
        def work():
            while True:
                commands.run()
        for _ in range(2):
            threading.Thread(target=work, daemon=True).start()
        time.sleep(0.1)
        print("end")
    """
    assert run_script(script) == "end"


# ---- memory ----


def test_blocks_are_aligned_and_writable() -> None:
    for size in (0, 1, 63, 64, 65, 1000, 4096, 100_000, 3 << 20, memory.HUGE_FROM, (5 << 20) + 1):
        block = memory.allocate(size)
        assert block.nbytes == size
        assert block.address % (memory.HUGE_PAGE if size >= memory.HUGE_FROM else memory.ALIGNMENT) == 0
        view = block.view()
        assert (view.format, view.nbytes, view.readonly) == ("B", size, False)
        view[:] = bytes([171]) * size
        assert ctypes.string_at(block.address, size) == bytes([171]) * size


def test_size_classes_fit_and_waste_little() -> None:
    powers = [2**power + extra for power in range(10, 36) for extra in (-1, 0, 1)]
    for nbytes in (*range(1, 3000, 37), *powers):
        size = memory.size_class(nbytes)
        assert size >= nbytes
        assert size % memory.ALIGNMENT == 0
        assert memory.size_class(size) == size, nbytes
        assert size - nbytes < max(memory.ALIGNMENT, nbytes / 7)


def test_a_freed_block_is_used_again_and_a_live_one_is_not() -> None:
    allocator = memory.Allocator(limit=1 << 20)
    first = allocator.allocate(1000)
    address = first.address
    second = allocator.allocate(1000)
    assert second.address != address
    del first
    assert allocator.cached == 1024
    assert allocator.allocate(990).address == address
    del second


def test_unused_memory_is_given_to_the_system() -> None:
    blocks = [memory.allocate(size) for size in (100, 1 << 16, 1 << 20)]
    del blocks
    assert memory._allocator.cached >= (1 << 20) + (1 << 16)
    Device["CPU"].release_unused()
    assert memory._allocator.cached == 0


def test_the_cache_keeps_its_limit_and_drops_the_classes_unused_longest() -> None:
    allocator = memory.Allocator(limit=100 * 1024)
    old = allocator.allocate(20 * 1024)
    del old
    for _ in range(5):
        blocks = [allocator.allocate(10 * 1024) for _ in range(9)]
        del blocks
        assert allocator.cached <= allocator.limit
    assert allocator._buckets[20 * 1024] == []
    assert allocator._buckets[10 * 1024] != []
    large = allocator.allocate(1 << 20)
    del large
    assert allocator.cached <= allocator.limit
    held = allocator.allocate(64)
    assert allocator.free_cached() > 0
    assert (allocator.cached, allocator.live) == (0, 64)
    del held


def test_a_view_keeps_the_block() -> None:
    allocator = memory.Allocator(limit=1 << 20)
    view = allocator.allocate(100).view()
    view[:4] = b"kept"
    part = view[1:3]
    del view
    gc.collect()
    assert allocator.cached == 0
    assert bytes(part) == b"ep"
    del part
    gc.collect()
    assert allocator.cached == 128


def test_wrap_borrows_without_a_copy() -> None:
    source = bytearray(b"abcdef")
    wrapped = memory.wrap(source)
    source[0] = ord("X")
    assert bytes(wrapped.view()) == b"Xbcdef"
    wrapped.view()[1] = ord("Y")
    assert source == b"XYcdef"
    with pytest.raises(BufferError):
        source.append(1)
    del wrapped
    source.append(1)
    fixed = memory.wrap(b"constant")
    assert fixed.readonly
    assert fixed.view().readonly
    assert bytes(memory.wrap(memoryview(b"constant")[2:4]).view()) == b"ns"
    assert memory.wrap(b"").nbytes == 0
    with pytest.raises(BufferError):
        memory.wrap(memoryview(b"constant")[::2])
    with pytest.raises(TypeError):
        memory.wrap(5)


def test_wrap_of_numpy_arrays() -> None:
    values = np.arange(6, dtype=np.int32).reshape(2, 3)
    wrapped = memory.wrap(values)
    assert (wrapped.address, wrapped.nbytes) == (values.ctypes.data, 24)
    with pytest.raises(BufferError):
        memory.wrap(values.T)
    alive = weakref.ref(values)
    del values
    assert alive() is not None
    assert list(wrapped.view().cast("i")) == [0, 1, 2, 3, 4, 5]
    del wrapped
    assert alive() is None


def test_too_much_memory_is_refused() -> None:
    allocator = memory.Allocator(limit=1 << 20)
    for size in (system.memory_total() * 2, 1 << 62, system.memory_available() + (1 << 30)):
        with pytest.raises(MemoryError, match="bytes"):
            allocator.allocate(size)
    with pytest.raises(ValueError):
        allocator.allocate(-1)
    allocator.total = 1 << 20
    cached = allocator.allocate(500 << 10)
    del cached
    block = allocator.allocate(900 << 10)  # fits only because the cached block is given up
    assert allocator.cached == 0
    with pytest.raises(MemoryError):
        allocator.allocate(200 << 10)
    del block


def test_many_threads_never_share_a_block() -> None:
    allocator = memory.Allocator(limit=64 * 1024)
    failures: list[str] = []

    def work(mark: int) -> None:
        generator = random.Random(mark)
        held: list[memory.HostMemory] = []
        for _ in range(1500):
            block = allocator.allocate(generator.choice((40, 64, 3000, 20000)))
            ctypes.memset(block.address, mark, 40)
            held.append(block)
            if len(held) > 6:
                old = held.pop(generator.randrange(6))
                if ctypes.string_at(old.address, 40) != bytes([mark]) * 40:
                    failures.append("a block was overwritten")

    workers = [threading.Thread(target=work, args=(mark,)) for mark in range(1, 5)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert failures == []
    allocator.free_cached()
    assert (allocator.live, allocator.cached) == (0, 0)
