"""Which kernels of a network would be slow on a card, found without one: the kernels of a step are planned for the
card, and each that no tensor core computes is estimated from its accesses and its threads.

    python -m tools.slow_kernels [--target h200] [--kernels 14] [NETWORK ...]

Out: for each network (`bench/network_rows.py`) its kernels with the largest estimates: milliseconds of all launches,
launches, work-groups by threads, opts, and the accesses whose adjacent threads touch elements that are not adjacent.
Estimates were within a third of the card's times where a kernel is bound by memory or by the terms of its sums.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from bench.network_rows import NETWORKS
from tilewright import Context, dtypes
from tilewright.base.target import Target
from tilewright.engine.compilation.compile import LoadedKernel
from tilewright.engine.planning import plan
from tilewright.graph.ops import AxisType
from tilewright.graph.records import OptOps
from tilewright.graph.uop import UOp
from tilewright.graph.walk import size_of
from tilewright.kernel.axes import KernelView, is_counted, stride, view_kernel
from tilewright.kernel.optimise import optimise
from tilewright.runtime.device import register_backend
from tools.chosen_opts import DEVICE, ChosenDriver, step, targets

BYTES_PER_SECOND = 4.0e12  # of an H200
TERMS_PER_SECOND = 3.0e12  # of sums without tensor cores
SECTOR = 32  # the bytes that a card reads for one element
FULL_THREADS = 512  # the threads with which a multiprocessor reaches its bandwidth
SMALL = 1 << 20  # bytes of an operand that caches hold, in whichever order it is read
LAUNCH = 2e-6
PARALLEL = (AxisType.GLOBAL, AxisType.LOCAL, AxisType.GROUP)
ADJACENT = (AxisType.LOCAL, AxisType.GROUP, AxisType.UPCAST, AxisType.UNROLL)


@dataclass(frozen=True)
class Estimate:
    """A kernel: its name and opts, how many threads it has, the most iterations that an access has, the terms of its
    sums, the seconds of a launch, and its accesses across memory. `is_tensor` where tensor cores compute it: there is
    no estimate."""

    name: str
    opts: str
    groups: int
    threads: int
    work: int
    terms: int
    seconds: float
    across: tuple[str, ...]
    is_tensor: bool


@contextmanager
def recorded_kernels(target: Target) -> Iterator[Counter[UOp]]:
    """The kernels that are planned inside the block, each with its launches. None is compiled or run."""
    kernels: Counter[UOp] = Counter()

    def record(wanted: Any, workers: Any = None) -> list[LoadedKernel]:
        kernels.update(ast for ast, _ in wanted)
        return [LoadedKernel("kernel", device, 0, 0, None, None) for _, device in wanted]

    register_backend(DEVICE, lambda _: ChosenDriver(target))
    before, plan.compile_kernels = plan.compile_kernels, record  # type: ignore[assignment]
    try:
        with Context(CACHE=0, DYNAMIC_KERNELS=0, DEVICE=DEVICE):
            yield kernels
    finally:
        plan.compile_kernels = before


def kernels_of(name: str, target: Target, dtype: Any = dtypes.bfloat16, **sizes: int) -> Counter[UOp]:
    """Those of a network of `bench.networks` in the sizes of the card, but for those that are given."""
    with recorded_kernels(target) as kernels:
        step(NETWORKS[name], NETWORKS[name].sizes["card"] | sizes, dtype)
    return kernels


def product_of_sizes(axes: Any) -> int:
    return math.prod(map(size_of, axes))


def estimate(ast: UOp, target: Target) -> Estimate:
    made = optimise(ast, target)
    view = view_kernel(made, target)
    groups = product_of_sizes(axis for axis in view.axes if axis.arg.kind is AxisType.GLOBAL)
    threads = product_of_sizes(axis for axis in view.axes if axis.arg.kind in PARALLEL[1:])
    work = max((product_of_sizes(access.ranges) for access in view.accesses), default=0)
    counted = [node for node in view.reduces if all(map(is_counted, node.src[0].ranges))]
    terms = max((product_of_sizes({*node.src[0].ranges, *repeating(view, node)}) for node in counted), default=0)
    across = [access for access in view.accesses if is_across(access)]
    moved = sum(
        bytes_of(access) * (SECTOR // access.dtype.itemsize if access in across else 1) for access in view.accesses
    )
    share = min(1.0, groups / target.cores, groups * threads / (target.cores * FULL_THREADS))
    opts = made.arg.applied
    return Estimate(
        made.arg.name,
        " ".join(f"{opt.op.name}({opt.axis},{opt.arg})" for opt in opts),
        groups,
        threads,
        work,
        terms,
        max(moved / BYTES_PER_SECOND, terms / TERMS_PER_SECOND) / max(share, 1e-3) + LAUNCH,
        tuple(described(view, access) for access in across),
        any(opt.op is OptOps.TC for opt in opts),
    )


def repeating(view: KernelView, reduce: UOp) -> list[UOp]:
    """The threads of a group that each sum the same terms."""
    beside = [axis for axis in view.axes if axis.arg.kind is AxisType.LOCAL and axis not in reduce.src[0].ranges]
    is_shared = any(axis.arg.kind is AxisType.GROUP for axis in reduce.src[0].ranges)
    return [] if is_shared else beside


def bytes_of(access: UOp) -> int:
    return product_of_sizes(access.ranges) * access.dtype.itemsize


def is_across(access: UOp) -> bool:
    """Whether neither the threads of a group nor the vectors of one go along memory."""
    beside = [axis for axis in access.ranges if axis.arg.kind in ADJACENT]
    return bytes_of(access) >= SMALL and not any(stride(access, axis) == 1 for axis in beside)


def described(view: KernelView, access: UOp) -> str:
    loops = ", ".join(f"{size_of(axis)} {axis.arg.kind.name} by {stride(access, axis)}" for axis in access.ranges)
    return f"{'store' if access in view.stores else 'load'} across memory: {loops}"


def report(name: str, target: Target, count: int) -> None:
    counts: dict[UOp, int] = dict(kernels_of(name, target))
    found = [
        (number * each.seconds, number, each)
        for ast, number in counts.items()
        if not (each := estimate(ast, target)).is_tensor
    ]
    total = sum(seconds for seconds, _, _ in found)
    print(f"{name}: {sum(counts.values())} launches; {len(found)} kernels without tensor cores, {1e3 * total:.2f} ms")
    for seconds, number, each in sorted(found, key=lambda item: -item[0])[:count]:
        print(f"  {1e3 * seconds:7.3f} ms x{number} {each.name}, {each.groups} by {each.threads}: {each.opts}")
        for access in each.across:
            print(f"      {access}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cards = [name for name, target in targets().items() if target.max_group_size > 1 and target.cores > 16]
    parser.add_argument("--target", default="h200", choices=cards)
    parser.add_argument("--kernels", type=int, default=14, help="of each network, at most")
    parser.add_argument(
        "networks", nargs="*", metavar="NETWORK", help=f"of {', '.join(NETWORKS)}; all where none is named"
    )
    chosen = parser.parse_args()
    for name in chosen.networks:
        if name not in NETWORKS:
            parser.error(f"no network {name!r}; there are: {', '.join(NETWORKS)}")
    for name in chosen.networks or NETWORKS:
        report(name, targets()[chosen.target], chosen.kernels)


if __name__ == "__main__":
    main()
