"""Compiles the CUDA text of the whole op table with NVRTC; no card is needed.

    python -m tests.backends.cuda_texts [--quick] [--workers 2] [--rows PART]

Every row is called over all its dtypes on a device that renders for CUDA and runs nothing; the texts, each once, are
compiled many at a time. Exit status 1 where NVRTC refuses one; the ones it refuses are compiled alone and shown.
"""

from __future__ import annotations

import argparse
import multiprocessing
import re
import sys
import time
from collections.abc import Sequence
from typing import Any

from tests.ops.rows import listed
from tests.ops.table import TABLE
from tilewright import Tensor
from tilewright.backends.cuda.device import cuda_target
from tilewright.backends.cuda.dot import render_program
from tilewright.backends.cuda.nvrtc import compile_text
from tilewright.base.config import set_option
from tilewright.base.errors import CompileError, TilewrightError
from tilewright.graph.records import Program
from tilewright.runtime.device import Address, HostDriver, Runner, register_backend

DEVICE = "CUDA"
_NAME = re.compile(r"(__launch_bounds__\([\d, ]+\) )(\w+)\(")
_HELPER = re.compile(r"^__device__ inline .*\{", re.MULTILINE)


class Zeros:
    """Host memory that nothing writes to but the host."""

    def __init__(self, nbytes: int) -> None:
        self.bytes = bytearray(nbytes)

    @property
    def nbytes(self) -> int:
        return len(self.bytes)

    def view(self) -> memoryview:
        return memoryview(self.bytes)


class Idle(Runner):
    def run(self) -> None:
        return

    def set_address(self, launch: int, param: int, address: Address) -> None:
        return


class Collector(HostDriver):
    """Renders for CUDA, keeps the texts, runs nothing."""

    def __init__(self) -> None:
        self.target = cuda_target()
        self.texts: dict[str, str] = {}  # text without its name -> the name it came with

    def allocate(self, nbytes: int) -> Zeros:
        return Zeros(nbytes)

    def render(self, program: Program) -> str:
        return render_program(program)

    def compile(self, source: str) -> bytes:
        found = _NAME.search(source)
        assert found is not None, source
        lines = source.splitlines()
        self.texts.setdefault(
            "\n".join(_NAME.sub(r"\1kernel(", line) for line in lines if not line.startswith("//")), found[2]
        )
        return b""

    def load(self, binary: bytes, program: Program) -> Program:
        return program

    def prepare(self, launches: Sequence[tuple[Any, Sequence[Address]]]) -> Idle:
        return Idle()


def collect(part: str, share: int = 0, shares: int = 1) -> dict[str, str]:
    """The texts of the rows whose name contains `part`, of each `shares` rows the one with number `share`."""
    collector = Collector()
    register_backend(DEVICE, lambda name: collector)
    set_option("CACHE", 0)
    for row in [row for row in TABLE if part in row.name][share::shares]:
        outputs: list[Any] = []
        for dtype in row.dtypes:
            try:
                if row.creates:
                    outputs += listed(row.call(DEVICE, dtype))
                else:
                    outputs += listed(row.call(*(Tensor(a, device=DEVICE) for a in row.arrays(dtype))))
            except TilewrightError as error:
                # A row may look at its values, which are not computed here: it is compiled as far as it gets.
                print(f"{row.name} of {dtype} stops at: {type(error).__name__}", file=sys.stderr)
        tensors = [output for output in outputs if isinstance(output, Tensor)]
        if tensors:
            Tensor.realize(*tensors)
    return collector.texts


def joined(texts: Sequence[str]) -> str:
    """Many kernels as one text: each in a namespace of its own, with a name of its own."""
    parts = []
    for number, text in enumerate(texts):
        named = _NAME.sub(rf"\g<1>kernel{number}(", text)
        parts.append(f"namespace part{number} {{\n{named}\n}}")
    return "\n".join(parts)


def refused(texts: Sequence[str], arch: str, is_quick: bool) -> list[str]:
    """The complaints about each text that does not compile, found by halves."""
    try:
        if is_quick:
            compile_text(joined(texts), arch, "PTX", ("--device-debug",))
        else:
            compile_text(joined(texts), arch)
        return []
    except CompileError as error:
        if len(texts) == 1:
            return [str(error)]
    middle = len(texts) // 2
    return [*refused(texts[:middle], arch, is_quick), *refused(texts[middle:], arch, is_quick)]


def with_new_helpers(texts: Sequence[str]) -> list[str]:
    """Texts, short ones first, until every helper is in one of them: inline assembly stands in helpers alone."""
    seen: set[str] = set()
    chosen = []
    for text in sorted(texts, key=len):
        helpers = set(_HELPER.findall(text)) - seen
        if helpers:
            seen |= helpers
            chosen.append(text)
    return chosen


def compile_share(part: str, share: int, shares: int, batch: int, is_quick: bool) -> tuple[int, list[str], float]:
    """How many texts there were, what was refused, and the processor's seconds."""
    start = time.process_time()
    texts = list(collect(part, share, shares))
    arch = cuda_target().arch
    complaints: list[str] = []
    for first in range(0, len(texts), batch):
        complaints += refused(texts[first : first + batch], arch, is_quick)
    if is_quick and not complaints:
        complaints += refused(with_new_helpers(texts), arch, is_quick=False)
    return len(texts), complaints, time.process_time() - start


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", default="", help="part of a row's name; every row where empty")
    parser.add_argument("--batch", type=int, default=48)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="optimise nothing; only helpers go through the assembler")
    chosen = parser.parse_args()
    start = time.perf_counter()
    shares = [(chosen.rows, n, chosen.workers, chosen.batch, chosen.quick) for n in range(chosen.workers)]
    if chosen.workers == 1:
        found = [compile_share(*shares[0])]
    else:
        with multiprocessing.get_context("spawn").Pool(chosen.workers) as pool:
            found = pool.starmap(compile_share, shares)
    complaints = [complaint for _, refusals, _ in found for complaint in refusals]
    for complaint in complaints:
        print(complaint, file=sys.stderr)
    count = sum(number for number, _, _ in found)
    print(
        f"{count} kernels for {cuda_target().arch}: {len(complaints)} refused; {time.perf_counter() - start:.0f} s, "
        f"{sum(seconds for _, _, seconds in found):.0f} s of processor time"
    )
    return 1 if complaints or not count else 0


if __name__ == "__main__":
    sys.exit(main())
