"""Golden texts: what a renderer writes for a kernel lies in a file beside this one, and a test compares. Reading the
difference is reviewing the change; `pytest --update-golden` writes the files anew.

`program_of` makes a program from a tensor expression, opts and a target, the same on every machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import tilewright.engine.devices  # noqa: F401 (enters the devices)
from tests.kernel.kernels import kernel_of, leaf
from tilewright.base.dtype import dtypes
from tilewright.base.target import ALL_DTYPES, SMALL_FLOATS, Target
from tilewright.codegen.pipeline import lower
from tilewright.graph import build
from tilewright.graph.ops import Ops
from tilewright.graph.records import KernelInfo, Opt, OptOps, Program
from tilewright.graph.uop import UOp
from tilewright.graph.verification.verify import verify_program
from tilewright.kernel.optimise import optimise

FOLDER = Path(__file__).parent
# The CPU of golden texts, whatever the machine at hand is.
CPU = Target(
    "CPU",
    vector_bytes=32,
    cores=2,
    has_threads=True,
    max_local_bytes=1 << 20,
    native=ALL_DTYPES - SMALL_FLOATS,
    native_ops=frozenset(
        {"NEG", "SQRT", "TRUNC", "ADD", "SUB", "MUL", "FDIV", "MAX", "MIN", "AND", "OR", "XOR"}
        | {"CMPLT", "CMPEQ", "CMPNE", "WHERE", "CAST"}
    ),
)


def program_of(name: str, output: UOp, opts: tuple[Opt, ...], target: Target) -> Program:
    """The one kernel of an expression, with exactly these opts."""
    program = lower(optimise(kernel_of(output).replace(arg=KernelInfo(name, opts_to_apply=opts)), target), target)
    verify_program(program)
    return program


def check_golden(name: str, text: str, request: pytest.FixtureRequest) -> None:
    path = FOLDER / name
    if request.config.getoption("--update-golden"):
        path.write_text(text)
    assert path.exists(), f"there is no {path.name}: run pytest --update-golden and read what it writes"
    assert text == path.read_text(), f"{path.name} has changed: run pytest --update-golden and read the difference"


# ---------------------------------------------------------------- kernels that show what a renderer does


def product() -> UOp:
    """A matrix product with an epilogue: accumulators, vectors, a tile in two directions."""
    left = build.expand(build.reshape(leaf(0, 32, 24), (32, 24, 1)), (32, 24, 16))
    right = build.expand(build.reshape(leaf(1, 24, 16), (1, 24, 16)), (32, 24, 16))
    total = build.reduce_axis(Ops.ADD, build.alu(Ops.MUL, left, right), (1,))
    return build.alu(Ops.MAX, total, build.const(dtypes.float32, 0.0))


def padded() -> UOp:
    """Masked loads, of which some need no mask."""
    return build.pad(leaf(0, 6, 10), ((0, 0), (1, 2)))


def integers() -> UOp:
    """Arithmetic that wraps, and a bool in memory."""
    x, y = leaf(0, 40, dtype=dtypes.int32), leaf(1, 40, dtype=dtypes.int32)
    mask = leaf(2, 40, dtype=dtypes.bool)
    return build.where(mask, build.alu(Ops.MUL, x, y), build.alu(Ops.SUB, x, y))


def rows() -> UOp:
    """The sum of each row."""
    return build.reduce_axis(Ops.ADD, leaf(0, 8, 256), (1,))


UPCAST, UNROLL, LOCAL, GROUP, THREAD = OptOps.UPCAST, OptOps.UNROLL, OptOps.LOCAL, OptOps.GROUP, OptOps.THREAD
Case = tuple[Callable[[], UOp], tuple[Opt, ...]]
EVERYWHERE: dict[str, Case] = {
    "product": (product, (Opt(UPCAST, 0, 2), Opt(UPCAST, 1, 4))),
    "padded": (padded, ()),
    "integers": (integers, (Opt(UPCAST, 0, 4),)),
}
WITH_GROUPS: dict[str, Case] = {
    "product_local": (product, (Opt(UPCAST, 1, 4), Opt(LOCAL, 0, 8))),
    "rows_group": (rows, (Opt(GROUP, 1, 16),)),
}
WITH_THREADS: dict[str, Case] = {
    "rows_thread": (rows, (Opt(THREAD, 0, 8),)),
}

# ---------------------------------------------------------------- a kernel for each transform

# The name of a kernel of tests/kernel/kernels.py, and opts of which the last is the transform.
TRANSFORMED: dict[OptOps, tuple[str, tuple[Opt, ...]]] = {
    OptOps.UPCAST: ("elementwise", (Opt(UPCAST, 0, 4),)),
    OptOps.UNROLL: ("row_sums", (Opt(UNROLL, 1, 4),)),
    OptOps.THREAD: ("elementwise", (Opt(THREAD, 0, 4),)),
    OptOps.LOCAL: ("elementwise", (Opt(LOCAL, 0, 4),)),
    OptOps.GROUP: ("row_sums", (Opt(GROUP, 1, 8),)),
    OptOps.GROUPTOP: ("row_sums", (Opt(OptOps.GROUPTOP, 1, 8),)),
    OptOps.NOLOCALS: ("whole_sum", (Opt(OptOps.NOLOCALS),)),
    OptOps.PADTO: ("elementwise", (Opt(OptOps.PADTO, 1, 16),)),
    OptOps.SWAP: ("product", (Opt(OptOps.SWAP, 0, 1),)),
    OptOps.BLOCK: ("product", (Opt(OptOps.BLOCK, 0, 4),)),
    OptOps.STAGE: ("product", (Opt(UPCAST, 1, 5), Opt(OptOps.STAGE, 1, 1))),
    OptOps.MEMOISE: ("rows_less_their_greatest", (Opt(OptOps.MEMOISE, 3),)),
    OptOps.SCATTER: ("added_by_index", (Opt(OptOps.SCATTER, 0, 2),)),
    OptOps.DISTRIBUTE: ("added_by_index", (Opt(OptOps.SCATTER, 0, 1), Opt(OptOps.DISTRIBUTE, 1))),
    OptOps.SPILL: ("column_sums", (Opt(OptOps.SPILL, 0),)),
    OptOps.CLIP: ("shifted_sums", (Opt(OptOps.CLIP, 1),)),
    OptOps.CUT: ("joined", (Opt(OptOps.CUT, 1),)),
    OptOps.ALIGN: ("elementwise", (Opt(OptOps.ALIGN, 1, 8),)),
}
