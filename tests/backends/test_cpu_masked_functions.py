"""Tiles of several masked vectors on processors without masked loads and stores: the lanes are accessed in a function
that all vectors of a type share, and memory is not touched where they are masked off."""

from __future__ import annotations

import ctypes
import mmap
import re
from dataclasses import replace

import numpy as np
import pytest

from tests.golden.texts import leaf, program_of
from tilewright.backends.cpu.code import llvm
from tilewright.backends.cpu.device import cpu_target
from tilewright.backends.cpu.rendering.renderer import render
from tilewright.base.dtype import DType, dtypes
from tilewright.base.target import Target
from tilewright.graph import build
from tilewright.graph.ops import Ops
from tilewright.graph.records import Opt, OptOps, Program

WITHOUT = replace(cpu_target(), masked_itemsizes=frozenset())
ROWS = 5


def made_of(columns: int, multiple: int, dtype: DType, target: Target, at_once: int = ROWS) -> Program:
    """Rows that are padded to a multiple; several of them make a tile."""
    padded = (Opt(OptOps.PADTO, 1, multiple), Opt(OptOps.UPCAST, 1, multiple))
    tiled = (Opt(OptOps.UPCAST, 0, at_once),) if at_once > 1 else ()
    # The second buffer has no rows: they stay a loop of their own.
    x = leaf(0, ROWS, columns, dtype=dtype)
    greatest = build.alu(Ops.MAX, x, build.expand(leaf(1, 1, columns, dtype=dtype), (ROWS, columns)))
    return program_of("padded", greatest, padded + tiled, target)


class Page:
    """Memory whose last byte is the last one that may be touched."""

    def __init__(self, contents: np.ndarray) -> None:
        size = -(-contents.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        self.memory = mmap.mmap(-1, size + mmap.PAGESIZE)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        libc = ctypes.CDLL(None)
        libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        assert libc.mprotect(start + size, mmap.PAGESIZE, 0) == 0
        self.address = start + size - contents.nbytes
        ctypes.memmove(self.address, contents.ctypes.data, contents.nbytes)


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64, dtypes.int8, dtypes.int16], ids=lambda d: d.name)
@pytest.mark.parametrize(("columns", "multiple"), [(20, 16), (13, 16), (13, 8), (7, 4), (60, 64)])
def test_rows_of_a_tile_share_a_function_and_touch_nothing_behind_them(
    columns: int, multiple: int, dtype: DType
) -> None:
    program = made_of(columns, multiple, dtype, WITHOUT)
    text = render(program, "kernel")
    for access in ("load", "store"):
        assert len(re.findall(rf"call [^\n]*@masked\.{access}\.", text)) >= ROWS
        assert len(re.findall(rf"define internal [^\n]*@masked\.{access}\.", text)) == 1
    code = llvm.load_object(llvm.compile_ir(text), "kernel")
    kernel = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(code.address)
    x = (np.arange(ROWS * columns) % 11).astype(dtype.name)
    least = (np.arange(columns) % 3 + 4).astype(dtype.name)
    given = [x if param.size == x.size else least for param in program.params[1:]]
    pages = [Page(array) for array in (np.zeros_like(x), *given)]
    kernel((ctypes.c_void_p * 3)(*(page.address for page in pages)), 0, 1)
    found = np.frombuffer(ctypes.string_at(pages[0].address, x.nbytes), dtype.name)
    np.testing.assert_array_equal(found, np.maximum(x.reshape(ROWS, columns), least).ravel())


@pytest.mark.parametrize(("columns", "multiple"), [(20, 16), (13, 16), (60, 64)])
def test_the_rows_of_a_tile_share_a_branch(columns: int, multiple: int) -> None:
    """A branch for each vector of a tile would be most of the time of compiling it."""
    texts = [
        render(made_of(columns, multiple, dtypes.float32, WITHOUT, at_once=at_once), "kernel") for at_once in (1, ROWS)
    ]
    one, several = (text.count(".whole:") for text in texts)
    assert 0 < several <= one


def test_no_vector_of_a_tile_is_live_across_a_call_that_stores_another() -> None:
    """Allocated for the calls, accumulators moved between registers in every iteration of a product's inner loop:
    393x28x10564 took 9.5 ms on a Neoverse N1, and takes 7.7."""
    text = render(made_of(20, 16, dtypes.float32, WITHOUT), "kernel")
    first = text.index("call void @masked.store.stack.")
    assert len(re.findall(r"store <16 x float> [^\n]*ptr %vector\d", text[:first])) == ROWS
    assert not re.search(r"store <16 x float> [^\n]*ptr %vector\d", text[first:])


def test_masked_loads_of_a_kernel_share_a_function() -> None:
    sources = [leaf(number, 7, 13) for number in range(6)]
    total = sources[0]
    for source in sources[1:]:
        total = build.alu(Ops.MAX, total, build.shrink(build.pad(source, ((0, 0), (3, 0))), ((0, 7), (0, 13))))
    text = render(program_of("padded", total, (Opt(OptOps.PADTO, 1, 16), Opt(OptOps.UPCAST, 1, 16)), WITHOUT), "kernel")
    assert len(re.findall(r"call [^\n]*@llvm\.masked\.load\.", text)) <= 1
    assert len(re.findall(r"call [^\n]*@masked\.load\.", text)) >= 5


def test_one_vector_at_a_time_has_its_lanes_in_place() -> None:
    """A loop that copies the edges of images meets lanes that are off in most iterations."""
    text = render(made_of(13, 16, dtypes.float32, WITHOUT, at_once=1), "kernel")
    assert "call void @llvm.masked.store" in text
    assert "@masked." not in text


def test_a_processor_with_masked_accesses_uses_them() -> None:
    text = render(made_of(13, 16, dtypes.float32, replace(WITHOUT, masked_itemsizes=frozenset({4}))), "kernel")
    assert text.count("call void @llvm.masked.store") == ROWS
    assert "@masked." not in text
