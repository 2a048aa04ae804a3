"""Random contractions on every staging core: the emulator finds the same sums as for the kernel as scheduled.

Sizes, orders of axes, strides, masks, batches and conversions are drawn from a seed; numbers are small fractions, whose
sums are exact in any order. `python -m tests.kernel.test_contraction_fuzz SEED COUNT` runs fresh ones."""

from __future__ import annotations

import random
import sys

import pytest

from tests.kernel.test_tensor_core import BF16, compare, empty, kernel_of, reason
from tilewright import Tensor
from tilewright.backends.cuda.cores import part_core, thread_core, warp_group_core
from tilewright.base.target import TensorCore
from tilewright.graph.ops import Ops
from tilewright.graph.walk import toposort
from tilewright.kernel.axes import view_kernel
from tilewright.kernel.transforms.tensor_core import check_bulk

CORES = (
    *(warp_group_core(BF16, 64, 64), warp_group_core(BF16, 64, 128)),
    *(thread_core(64, 64), thread_core(64, 128)),
    part_core(64, 64),
)
CASES = 24


def draw(generator: random.Random, core: TensorCore) -> Tensor:
    """An einsum of two operands, each permuted, sliced, padded or computed; or a convolution."""
    if generator.random() < 0.3:
        return draw_convolution(generator, core)
    letters = "abcdef"
    groups = [generator.randint(0, 1), generator.randint(1, 2), generator.randint(1, 2), generator.randint(1, 2)]
    names = iter(letters + "gh")
    batch, rows, columns, summed = ["".join(next(names) for _ in range(count)) for count in groups]
    sizes = {name: generator.choice((1, 2, 3, 5, 8, 13, 17)) for name in batch + rows + columns + summed}
    for group in (rows, columns):  # long enough for a core to take it
        sizes[group[0]] = generator.choice((16, 19, 24, 40))
    left, right = (shuffled(generator, batch + own + summed) for own in (rows, columns))
    output = shuffled(generator, batch + rows + columns)
    operands = [draw_operand(generator, core, [sizes[name] for name in names_of]) for names_of in (left, right)]
    result = Tensor.einsum(f"{left},{right}->{output}", *operands)
    return (result + 1).relu() if generator.random() < 0.3 else result


def shuffled(generator: random.Random, names: str) -> str:
    found = list(names)
    generator.shuffle(found)
    return "".join(found)


def draw_operand(generator: random.Random, core: TensorCore, shape: list[int]) -> Tensor:
    kind = generator.choice(("plain", "plain", "sliced", "padded", "computed", "flipped"))
    dtype = core.operand
    if kind == "sliced":
        more = [generator.randint(0, 3) for _ in shape]
        whole = empty(*(size + extra for size, extra in zip(shape, more, strict=True)), dtype=dtype)
        return whole.shrink(tuple((extra, extra + size) for size, extra in zip(shape, more, strict=True)))
    if kind == "padded" and shape[-1] > 2:
        return empty(*shape[:-1], shape[-1] - 2, dtype=dtype).pad((1, 1))
    if kind == "computed":
        return empty(*shape, dtype=dtype) * 2 + 1
    return empty(*shape, dtype=dtype).flip(0) if kind == "flipped" else empty(*shape, dtype=dtype)


def draw_convolution(generator: random.Random, core: TensorCore) -> Tensor:
    groups = generator.choice((1, 1, 2))
    inputs, outputs = groups * generator.choice((1, 3, 8)), groups * generator.choice((16, 20))
    kernel, size = generator.randint(1, 3), generator.randint(6, 9)
    x = empty(generator.randint(1, 3), inputs, size, size + 1, dtype=core.operand)
    w = empty(outputs, inputs // groups, kernel, kernel, dtype=core.operand)
    stride, padding = generator.randint(1, 2), generator.randint(0, 2)
    return x.conv2d(w, groups=groups, stride=stride, padding=padding, dilation=generator.randint(1, 2))


def run_case(seed: int) -> str:
    generator = random.Random(seed)
    core = generator.choice(CORES)
    sink = kernel_of(draw(generator, core))
    if not any(node.op is Ops.REDUCE for node in toposort(sink)):
        return "no sum"
    refused = reason(sink, core)
    if refused is not None:
        return refused
    view = view_kernel(sink)
    is_bulk = check_bulk(view, view.reduces[-1].src[1], core) is None
    compare(sink, core, Ops.DOT if is_bulk else Ops.TILE_DOT)
    return ""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(CASES))
def test_random_contractions(seed: int) -> None:
    run_case(seed)


def test_most_of_them_are_taken() -> None:
    generators = [random.Random(seed) for seed in range(CASES)]
    reasons = []
    for generator in generators:
        core = generator.choice(CORES)
        sink = kernel_of(draw(generator, core))
        has_sum = any(node.op is Ops.REDUCE for node in toposort(sink))
        reasons.append(reason(sink, core) if has_sum else "no sum")
    assert sum(found is None for found in reasons) >= CASES // 2, reasons


if __name__ == "__main__":
    first, count = int(sys.argv[1]), int(sys.argv[2])
    found: dict[str, int] = {}
    for seed in range(first, first + count):
        try:
            outcome = run_case(seed)
        except Exception as error:
            outcome = f"FAILED seed {seed}: {type(error).__name__} {str(error)[:200]}"
            print(outcome, flush=True)
        found[outcome.split(",")[0][:70]] = found.get(outcome.split(",")[0][:70], 0) + 1
    for outcome, number in sorted(found.items(), key=lambda item: -item[1]):
        print(number, outcome or "agree")
