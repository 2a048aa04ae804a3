"""Which opts are chosen: a line for every kernel of many programs on a target. No device is needed and nothing
is compiled or run: a change that should keep every choice is shown to, and one that should not shows what it changes.

    python -m tools.chosen_opts [--target arm2] [--parts table,sweep,networks] [--rows N] > before.txt
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from bench import models, sweep, sweep_cases
from bench.network_rows import NETWORKS, RATES
from tests.machines import target_of
from tests.ops.rows import listed
from tests.ops.table import TABLE
from tilewright import Context, Tensor, dtypes, nn
from tilewright.backends.cuda.device import cuda_target
from tilewright.backends.null.device import NullDriver
from tilewright.base.errors import TilewrightError
from tilewright.base.target import ALL_DTYPES, BASIC_OPS, SMALL_FLOATS, Target
from tilewright.engine.compilation.compile import LoadedKernel
from tilewright.engine.planning import plan
from tilewright.graph.uop import UOp
from tilewright.kernel.optimise import optimise
from tilewright.nn.state import get_parameters, get_state_dict
from tilewright.runtime.device import register_backend

DEVICE = "CHOSEN"
SEED = 20
TABLE_DTYPES = ("float32", "bfloat16", "int64")


def targets() -> dict[str, Target]:
    """Machines by name: the facts that choices are made by."""
    return {
        "arm2": target_of("neoverse-n1"),
        "arm16": target_of("neoverse-n1", cores=16),
        "avx2": target_of("haswell", cores=8),
        "avx512": target_of("skylake-avx512", cores=16),
        "h200": cuda_target(),
        "opencl": Target(
            name="OPENCL",
            has_local=True,
            max_local_bytes=512 << 10,
            max_group_size=4096,
            cores=2,
            cache_bytes=32 << 20,
            native=ALL_DTYPES - SMALL_FLOATS,
            native_ops=BASIC_OPS | {"EXP2", "LOG2", "SIN"},
        ),
    }


class Chooser:
    """Takes the place of the compiler: prints what is chosen for each kernel, each once for a program."""

    def __init__(self, name: str, target: Target) -> None:
        self.name = name
        self.target = target
        self.row = ""
        self.seconds = 0.0
        self.kernels = 0
        self.chosen: dict[UOp, str] = {}

    def compile_kernels(self, wanted: Sequence[tuple[UOp, str]], workers: Any = None) -> list[LoadedKernel]:
        for number, (ast, _) in enumerate(wanted):
            if ast not in self.chosen:
                self.chosen[ast] = self.choose(ast)
            print(f"{self.name} | {self.row} | {number} | {self.chosen[ast]}")
        return [LoadedKernel("kernel", device, 0, 0, None, None) for _, device in wanted]

    def choose(self, ast: UOp) -> str:
        start = time.process_time()
        try:
            made = optimise(ast, self.target)
        except TilewrightError as error:
            return f"{type(error).__name__}: {' '.join(str(error).split())[:100]}"
        self.seconds += time.process_time() - start
        self.kernels += 1
        stated = "stated" if ast.arg.opts_to_apply is not None else "chosen"
        shown = " ".join(f"{opt.op.name}({opt.axis},{opt.arg})" for opt in made.arg.applied)
        return f"{stated}: {shown}"


class ChosenDriver(NullDriver):
    def __init__(self, target: Target) -> None:
        super().__init__()
        self.target = target

    def variables_of(self, handle: Any) -> tuple[str, ...]:
        return ()


class Shapes:
    """A generator whose arrays of values are all zero and take no memory; what sizes are made of is random."""

    def __init__(self, random: np.random.Generator) -> None:
        self.generator = random

    def standard_normal(self, sizes: Any, dtype: Any = np.float32) -> np.ndarray:
        return np.broadcast_to(np.float32(0), sizes)

    def integers(self, low: int, high: int | None = None, size: Any = None) -> Any:
        if size is None:
            return self.generator.integers(low, high)
        return np.broadcast_to(np.int64(0), size)

    def random(self, size: Any = None) -> Any:
        return self.generator.random() if size is None else np.broadcast_to(0.0, size)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.generator, name)


def empty(array: np.ndarray, dtype: Any) -> Tensor:
    kind = dtype if array.dtype == np.float32 else getattr(dtypes, array.dtype.name)
    return Tensor.empty(*array.shape, dtype=kind, device=DEVICE)


# ---------------------------------------------------------------- programs


def table_rows(target: Target, count: int) -> Iterator[tuple[str, Callable[[], Any]]]:
    for row in TABLE[:count]:
        for dtype in [dtype for dtype in TABLE_DTYPES if dtype in row.dtypes]:

            def call(row: Any = row, dtype: str = dtype) -> None:
                given = () if row.creates else [Tensor(a, device=DEVICE) for a in row.arrays(dtype)]
                found = listed(row.call(DEVICE, dtype) if row.creates else row.call(*given))
                tensors = [output for output in found if isinstance(output, Tensor)]
                if tensors:
                    Tensor.realize(*tensors)

            yield f"{row.name} {dtype}", call


def sweep_rows(target: Target, count: int) -> Iterator[tuple[str, Callable[[], Any]]]:
    families = list(sweep.FAMILIES)
    scale = sweep_cases.SCALES["card" if target.has_local and target.cores > 16 else "host"]
    for number in range(min(count, 300)):
        family = families[number % len(families)]
        random: Any = Shapes(np.random.default_rng([SEED, number, families.index(family)]))
        case = sweep.FAMILIES[family](random, scale)
        dtype = dtypes.bfloat16 if number // len(families) % 2 else dtypes.float32

        def call(case: Any = case, dtype: Any = dtype) -> None:
            case.our_results()(*(empty(array, dtype) for array in case.inputs))

        yield f"{number} {case.name} {dtype.name}", call


def network_rows(target: Target, count: int) -> Iterator[tuple[str, Callable[[], Any]]]:
    for name, network in list(NETWORKS.items())[:count]:
        sizes = network.sizes["card" if target.has_local and target.cores > 16 else "host"]
        for dtype in (dtypes.float32, dtypes.bfloat16):
            yield f"{name} {dtype.name}", lambda network=network, sizes=sizes, dtype=dtype: step(network, sizes, dtype)


def step(network: Any, sizes: dict[str, int], dtype: Any) -> None:
    model = network.build(models.our_kit(), sizes)
    for tensor in get_state_dict(model).values():
        if tensor.dtype.is_float:
            tensor.replace(Tensor.empty(*tensor.shape, dtype=dtype, device=DEVICE))
    given = [
        empty(array if array.dtype == np.float32 else array.astype(np.int32), dtype) for array in network.inputs(sizes)
    ]
    if not network.is_step:
        with Tensor.no_grad():
            model(*given).realize()
        return
    parameters, rate = get_parameters(model), RATES[network.optimizer]
    optimizer: Any = (
        nn.optim.AdamW(parameters, lr=rate, weight_decay=0.01)
        if network.optimizer == "adamw"
        else nn.optim.SGD(parameters, lr=rate, momentum=0.9)
    )
    with Tensor.train():
        optimizer.zero_grad()
        loss = model(given[0]).float().cross_entropy(given[1])
        loss.backward()
        optimizer.step()
        loss.realize()


PARTS = {"table": table_rows, "sweep": sweep_rows, "networks": network_rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="arm2", choices=tuple(targets()))
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--rows", type=int, default=1 << 20, help="of each part, at most")
    chosen = parser.parse_args()
    chooser = Chooser(chosen.target, targets()[chosen.target])
    register_backend(DEVICE, lambda _: ChosenDriver(chooser.target))
    plan.compile_kernels = chooser.compile_kernels  # type: ignore[assignment]
    with Context(CACHE=0, DYNAMIC_KERNELS=0, DEVICE=DEVICE):
        for part in chosen.parts.split(","):
            for title, call in PARTS[part](chooser.target, chosen.rows):
                chooser.row = title
                # A row may look at its values, which are not computed: it goes as far as it gets.
                with contextlib.suppress(TilewrightError):
                    call()
    print(f"{chooser.name}: {chooser.kernels} kernels, {chooser.seconds:.1f} s of the kernel stage", file=sys.stderr)


if __name__ == "__main__":
    main()
