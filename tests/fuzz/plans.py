"""`python -m tests.fuzz.plans --seconds N [--seed S]`: random programs for random targets until time is up. In: a time.
Out: every plan of a template that does not do what its kernel does without opts; exit status 1 if any.

A program has sizes of 0, 1, primes and variables. For each of its kernels every plan that a template proposes is made
and run on the emulator, which also checks bounds, races and unwritten memory; the values of variables are their least,
one between, and the greatest. Targets have small caches and few registers, so that short loops reach what is meant for
long ones. Each kernel also gets a few random opts (`tests/fuzz/opts.py`). `--seed S --seconds 0` runs one program."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import math
import random
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import numpy as np

from tests.fuzz.opts import draw_opts
from tests.kernel.emulated_card import NAME, emulated_card
from tilewright import Tensor, Variable, dtypes
from tilewright.backends.python.emulator import run_program
from tilewright.base.errors import UserError
from tilewright.base.target import Target
from tilewright.codegen.pipeline import lower
from tilewright.engine.compilation.compile import forget_kernels
from tilewright.engine.planning import plan as planning
from tilewright.graph.interpreter.numpy_math import numpy_dtype
from tilewright.graph.kernels.sections import first_section
from tilewright.graph.records import KernelInfo, Opt, Program
from tilewright.graph.sizes import variable_bounds
from tilewright.graph.uop import UOp
from tilewright.graph.verification.verify import verify_kernel, verify_program
from tilewright.kernel.axes import view_kernel
from tilewright.kernel.optimise import optimise, prepare_kernel
from tilewright.kernel.templates import (
    blocked_products,
    packed_products,
    product_sizes,
    products,
    sharing,
    streamed_products,
    vectors,
)
from tilewright.kernel.templates.choose import planned_opts

# Limits below which a template leaves a kernel to others, or does less: low, so that small kernels reach all of them.
LOW_LIMITS = (
    (products, "MIN_PRODUCTS", 1),
    (packed_products, "MIN_SHARED", 1),
    (streamed_products, "MIN_STREAMED", 1),
    (blocked_products, "MIN_STREAMED", 1),
    (blocked_products, "MIN_L1_BLOCK", 1),
    (blocked_products, "MAX_L1_BLOCK", 8),
    (product_sizes, "MIN_SUM_BLOCK", 2),
    (sharing, "MIN_WORK", 1),
    (vectors, "BRIEF_WORK", 1),
)
SIZES = (1, 1, 2, 3, 4, 5, 7, 8, 9, 12, 13, 16, 17, 24, 31, 33, 40)
# A size of 0 in one program of so many, and variables in one of so many.
EMPTY_IN, SYMBOLIC_IN = 12, 3
MAX_GREATEST = 20
# The emulator takes a step for each term of a contraction, and a small one has the same plans on targets like these.
MAX_TERMS = 2000
TOLERANCE = 2e-4
# Random opts for each kernel, beside those of plans.
RANDOM_OPTS = 3

Opts = tuple[Opt, ...]


class Drawn:
    """Choices of one program: sizes, and tensors with these."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(f"plans {seed}")
        self.numbers = np.random.default_rng(seed)
        self.is_empty = self.chance.randrange(EMPTY_IN) == 0
        self.variables: list[Any] = []
        if self.chance.randrange(SYMBOLIC_IN) == 0:
            for name in ("n", "m")[: self.chance.randint(1, 2)]:
                least, greatest = self.chance.choice((0, 1, 1, 2)), self.chance.randint(3, MAX_GREATEST)
                self.variables.append(Variable(name, least, greatest).bind(self.chance.randint(least, greatest)))

    def size(self) -> int:
        return 0 if self.is_empty and self.chance.random() < 0.2 else self.chance.choice(SIZES)

    def sizes(self, count: int) -> list[Any]:
        """Some of them variables, in a program that has any. Long ones are drawn again where all loops together have
        too many steps."""
        found: list[Any] = [self.size() for _ in range(count)]
        while math.prod(found) > MAX_TERMS:
            most = max(found)
            found[found.index(most)] = self.chance.choice([size for size in SIZES if size < most])
        if self.variables and self.chance.random() < 0.6:
            found[self.chance.randrange(count)] = self.chance.choice(self.variables)
        return found

    def tensor(self, *sizes: Any, dtype: Any = dtypes.float32) -> Tensor:
        """Small whole numbers."""
        whole = [size if type(size) is int else MAX_GREATEST for size in sizes]
        given = Tensor(self.numbers.integers(-3, 4, whole).astype(numpy_dtype(dtype)), device=NAME)
        return given.shrink(tuple((0, size) for size in sizes))


Make = Callable[[Drawn], Tensor]


def product(drawn: Drawn) -> Tensor:
    rows, depth, columns = drawn.sizes(3)
    is_left, is_right = (drawn.chance.random() < part for part in (0.3, 0.4))
    left = drawn.tensor(depth, rows).T if is_left else drawn.tensor(rows, depth)
    right = drawn.tensor(columns, depth).T if is_right else drawn.tensor(depth, columns)
    found = left @ right
    return drawn.chance.choice((lambda x: x, lambda x: (x + 1).relu(), lambda x: x.sum(0)))(found)


def batched(drawn: Drawn) -> Tensor:
    sizes = dict(zip("brdc", drawn.sizes(4)))
    letters = ["".join(drawn.chance.sample(each, 3)) for each in ("brd", "bdc", "brc")]
    kind = drawn.chance.choice((dtypes.float32, dtypes.int32, dtypes.int8))
    operands = [drawn.tensor(*(sizes[letter] for letter in each), dtype=kind) for each in letters[:2]]
    return Tensor.einsum(f"{letters[0]},{letters[1]}->{letters[2]}", *operands)


def convolution(drawn: Drawn) -> Tensor:
    chance = drawn.chance
    channels, outputs, window = chance.choice((1, 2, 3, 8)), chance.choice((1, 3, 4, 9)), chance.choice((1, 2, 3))
    longest = max(3, math.isqrt(MAX_TERMS // (channels * outputs * window**2)))
    image = drawn.tensor(2, channels, *(max(3, min(17, longest, drawn.size())) for _ in range(2)))
    weight = drawn.tensor(outputs, channels, window, window)
    found = image.conv2d(weight, stride=chance.choice((1, 2)), padding=chance.choice((0, 1)))
    return found if chance.random() < 0.5 else found.sum().gradient(chance.choice((image, weight)))[0]


def reduction(drawn: Drawn) -> Tensor:
    x = drawn.tensor(*drawn.sizes(drawn.chance.randint(1, 3)))
    axis = drawn.chance.randrange(x.ndim)
    kinds: tuple[Callable[[], Tensor], ...] = (
        lambda: x.sum(axis),
        lambda: x.sum(axis, keepdim=True) + x,
        lambda: (x * 0.25).softmax(axis),
        lambda: x - x.mean(axis, keepdim=True),
        lambda: (x * x).sum(),
        lambda: x.cast(dtypes.int32).sum(axis),
        lambda: (x > 0).sum(axis),
    )
    return drawn.chance.choice(kinds)()


def movement(drawn: Drawn) -> Tensor:
    x = drawn.tensor(*drawn.sizes(drawn.chance.randint(2, 3)))
    axis = drawn.chance.randrange(x.ndim)
    kinds: tuple[Callable[[], Tensor], ...] = (
        lambda: x.permute(*reversed(range(x.ndim))).contiguous(),
        lambda: x.permute(*reversed(range(x.ndim))) + 1,
        lambda: x.flip(axis) * 2,
        lambda: x.cat(x + 1, dim=axis),
        lambda: x.pad(tuple((1, 2) for _ in range(x.ndim))).contiguous(),
        lambda: (x + 1).relu() * x,
        lambda: x.repeat(*(2 for _ in range(x.ndim))),
    )
    return drawn.chance.choice(kinds)()


def scan(drawn: Drawn) -> Tensor:
    x = drawn.tensor(*drawn.sizes(drawn.chance.randint(1, 3)))
    axis = drawn.chance.randrange(x.ndim)
    kinds: tuple[Callable[[], Tensor], ...] = (
        lambda: x.cumsum(axis),
        lambda: x.cummax(axis)[0],
        lambda: x.cumsum(axis).sum(),
        lambda: x.sort(axis)[0],
        lambda: x.cast(dtypes.int32).cumsum(axis),
    )
    return drawn.chance.choice(kinds)()


def by_index(drawn: Drawn) -> Tensor:
    rows, columns, count = max(1, drawn.size()), drawn.size(), drawn.size()
    table = drawn.tensor(rows, columns)
    index = Tensor(drawn.numbers.integers(0, rows, count).astype(np.int32), device=NAME)
    if drawn.chance.random() < 0.4:
        return table[index] * 2
    return table.index_add(0, index, drawn.tensor(count, columns))


FAMILIES: tuple[Make, ...] = (product, product, batched, convolution, reduction, movement, scan, by_index)


def draw_facts(chance: random.Random) -> dict[str, Any]:
    """The facts of CPU cores, or of work-groups with warps or without."""
    common = {"cores": chance.choice((1, 2, 3, 16)), "cache_bytes": chance.choice((1 << 10, 1 << 14, 1 << 25))}
    if chance.random() < 0.35:
        return common | {
            "warp_size": chance.choice((1, 4, 32)),
            "max_local_bytes": chance.choice((1 << 12, 1 << 15)),
            "max_group_size": chance.choice((16, 256, 1024)),
        }
    return common | {
        "has_local": False,
        "has_threads": True,
        "warp_size": 1,
        "vector_bytes": chance.choice((16, 32, 64)),
        "vector_registers": chance.choice((16, 32)),
        "core_cache_bytes": chance.choice((1 << 8, 1 << 11, 1 << 19)),
        "l1_bytes": chance.choice((1 << 9, 1 << 15)),
        "max_local_bytes": chance.choice((1 << 14, 1 << 20)),
        "prefetch_streams": chance.choice((2, 4, 16)),
        "read_streams": chance.choice((4, 8)),
        "memory_streams": chance.choice((1, 2, 4)),
        "tlb_entries": chance.choice((4, 64)),
        "page_bytes": chance.choice((1 << 8, 1 << 12)),
        "dot_products": (),
        "atomics": frozenset(),
    }


# ---------------------------------------------------------------- running them


def kernels_of(make: Make, drawn: Drawn) -> list[UOp]:
    """The kernels that a program is computed by; none of one that is refused."""
    found: list[UOp] = []
    compile_kernels = planning.compile_kernels

    def watch(wanted: Any, *others: Any) -> Any:
        found.extend(ast for ast, _ in wanted)
        return compile_kernels(wanted, *others)

    with mock.patch.object(planning, "compile_kernels", watch), contextlib.suppress(UserError):
        make(drawn).realize()
    return list(dict.fromkeys(found))


def values_of(ast: UOp) -> Iterator[dict[str, int]]:
    bounds = variable_bounds([ast])
    for part in (0.0, 0.4, 1.0) if bounds else (1.0,):
        yield {name: least + int(part * (greatest - least)) for name, (least, greatest) in bounds.items()}


def lowered(ast: UOp, target: Target, stated: Opts | None, planned: Opts | None = None) -> Program:
    """`stated` opts are for the kernel as it is; without any, `planned` ones are for the prepared kernel."""
    optimised = optimise(ast.replace(arg=KernelInfo("fuzzed", stated)), target, planned)
    verify_kernel(optimised)
    program = lower(optimised, target)
    verify_program(program)
    return program


def results(program: Program, data: list[np.ndarray], values: dict[str, int]) -> list[np.ndarray]:
    given = [array.copy() for array in data]
    run_program(program, given, [param.is_read for param in program.params], variables=values)
    return [array for array, param in zip(given, program.params) if param.is_written]


def examine_kernel(ast: UOp, target: Target, drawn: Drawn) -> Iterator[str | None]:
    """For each plan of a kernel, and for random opts, what goes wrong with it, or None."""
    ast = first_section(ast) if ast.arg.sections > 1 else ast
    plain = lowered(ast, target, ())
    kinds = [(2 if param.dtype.is_bool else 3, param.size, numpy_dtype(param.dtype)) for param in plain.params]
    data = [drawn.numbers.integers(0, most, size).astype(kind) for most, size, kind in kinds]
    expected = [(values, results(plain, data, values)) for values in values_of(ast)]
    view = view_kernel(prepare_kernel(ast.replace(arg=KernelInfo("fuzzed", None))), target)
    tried: list[tuple[Opts | None, Opts | None]] = [(None, opts) for opts in planned_opts(view)]
    tried += [(draw_opts(ast, drawn.chance, target), None) for _ in range(RANDOM_OPTS)]
    for stated, planned in tried:
        name = f"{'planned' if stated is None else 'random'} {list(stated or planned or ())}"
        try:
            program = lowered(ast, target, stated, planned)
            found = [(values, want, results(program, data, values)) for values, want in expected]
        except Exception as error:  # whatever a stage or a check of the emulator says is a finding
            yield f"{name}: {type(error).__name__}: {error}"
            continue
        wrong = [values for values, want, got in found if not all(map(is_close, got, want))]
        yield f"{name} with {wrong[0]}: other results" if wrong else None


def is_close(got: np.ndarray, want: np.ndarray) -> bool:
    return np.allclose(got.astype(np.float64), want.astype(np.float64), TOLERANCE, TOLERANCE, equal_nan=True)


def examine(seed: int) -> tuple[int, list[str]]:
    """The number of plans of one program, and its failures."""
    drawn = Drawn(seed)
    facts, make = draw_facts(drawn.chance), drawn.chance.choice(FAMILIES)
    with contextlib.ExitStack() as stack:
        for module, name, limit in LOW_LIMITS:
            stack.enter_context(mock.patch.object(module, name, limit))
        driver = stack.enter_context(emulated_card(**facts))
        asts = [ast for ast in kernels_of(make, drawn) if ast.arg.opts_to_apply is None]
        found = [text for ast in asts for text in examine_kernel(ast, driver.target, drawn)]
    return len(found), [f"seed {seed}: {make.__name__}, {facts}\n  {text}" for text in found if text is not None]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=None)
    arguments = parser.parse_args()
    first = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(1 << 40)
    deadline, plans, failures = time.monotonic() + arguments.seconds, 0, 0
    for seed in itertools.count(first):
        count, wrong = examine(seed)
        plans, failures = plans + count, failures + len(wrong)
        for text in wrong:
            print(text, flush=True)
        if time.monotonic() > deadline:
            break
    forget_kernels()
    print(f"{seed - first + 1} programs from seed {first} on, {plans} plans, {failures} failures")
    return failures > 0


if __name__ == "__main__":
    sys.exit(main())
