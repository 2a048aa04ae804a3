"""`python -m tests.fuzz.opts --seconds N [--seed S]`: random kernels with random opts until time is up.
In: a time. Out: every pair that did not do what the kernel without opts does, made small; exit status 1 if any.

A kernel comes from a table of kernels written by hand or from the schedule of a random expression. Opts are drawn from
what transforms propose and beyond: an illegal one must be refused with its reason and nothing else. The kernel with its
opts runs on the emulator, for a target with warps or without, which also checks bounds, races and unwritten memory; one
in a few also runs on the CPU, and on OPENCL where it is. `--seed S --seconds 0` runs the one pair of that seed."""

from __future__ import annotations

import argparse
import functools
import itertools
import math
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from tests.fuzz.generate import make_case
from tests.kernel.kernels import MASKED, ORDERED, SCHEDULED, contents, expected, kernel
from tilewright.backends.python.device import python_target
from tilewright.backends.python.emulator import run_program
from tilewright.base.config import Context
from tilewright.base.errors import KernelOptError, TilewrightError
from tilewright.base.target import Target
from tilewright.codegen.pipeline import lower
from tilewright.engine.compilation.compile import compile_kernel, forget_kernels
from tilewright.graph.ops import AxisType, Ops, ParamArg
from tilewright.graph.records import KernelInfo, Opt, OptOps
from tilewright.graph.uop import UOp
from tilewright.graph.verification.verify import verify_kernel, verify_program
from tilewright.graph.walk import size_of, substitute, toposort
from tilewright.kernel.apply import apply_opt
from tilewright.kernel.axes import view_kernel
from tilewright.kernel.optimise import optimise
from tilewright.kernel.prepare.accumulators import recognise_accumulators
from tilewright.kernel.transforms.registry import TRANSFORMS
from tilewright.runtime.device import open_driver
from tilewright.schedule.pipeline import schedule

# How often each transform is tried.
WEIGHTS: dict[OptOps, float] = {
    OptOps.UPCAST: 4,
    OptOps.UNROLL: 3,
    OptOps.LOCAL: 5,
    OptOps.GROUP: 5,
    OptOps.GROUPTOP: 5,
    OptOps.STAGE: 5,
    OptOps.MEMOISE: 3,
    OptOps.SCATTER: 3,
    OptOps.DISTRIBUTE: 6,
    OptOps.CLIP: 1,
    OptOps.CUT: 2,
    OptOps.ALIGN: 4,
    OptOps.SPILL: 2,
    OptOps.BLOCK: 3,
    OptOps.PADTO: 2,
    OptOps.SWAP: 2,
    OptOps.THREAD: 1,
    OptOps.NOLOCALS: 0.3,
}
TARGETS: tuple[Target, ...] = tuple(replace(python_target(), warp_size=size) for size in (1, 4, 32))
# Elements that are written out, and threads of a group: beyond these a pair only takes longer.
MAX_ELEMENTS = 64
MAX_THREADS = 256
MAX_OPTS = 6
# One pair in so many is also run on a device that compiles: as many as its compiler has time for.
PAIRS_PER_COMPILATION = {"CPU": 25, "OPENCL": 250}
CASES_WITH_KERNELS = 120
# What few kernels have a place for is tried in the first steps, in every other of those that have. Some of it needs
# another one to be applied before it.
FIRST = 6
RARE = (OptOps.MEMOISE, OptOps.SCATTER, OptOps.DISTRIBUTE, OptOps.CLIP, OptOps.CUT)
# Kernels that few transforms are for (dot-product instructions, sums that end where a mask does); their part of all.
SPECIAL = ("narrow_product", *MASKED)
SPECIAL_SHARE = 0.09


@dataclass(frozen=True)
class Pair:
    """One test: a kernel, by a name that finds it again, with opts, for a target."""

    seed: int
    name: str
    ast: UOp
    opts: tuple[Opt, ...]
    target: Target

    def __str__(self) -> str:
        return f"seed {self.seed}: {self.name} with {list(self.opts)}, warps of {self.target.warp_size}"


Check = Callable[[Pair], str | None]

# ---------------------------------------------------------------- making pairs


@functools.lru_cache(maxsize=CASES_WITH_KERNELS)
def kernels_of_case(seed: int) -> list[UOp]:
    """The kernels of a random expression that have no floats, in which every order is exact, and no updates."""
    case = make_case(seed)
    if any(node.op in (Ops.ASSIGN, Ops.COPY) for node in toposort(*case.outputs)):
        return []
    params = list(case.bindings)
    exchanges = {node: node.replace(arg=ParamArg(k, node.arg.size, "CPU")) for k, node in enumerate(params)}
    outputs = substitute(case.sink, exchanges).src
    items = schedule(outputs, [exchanges[node] for node in params], "CPU").items
    kernels = [item.ast for item in items if item.ast is not None]
    return [ast for ast in kernels if not any(node.dtype.is_float for node in toposort(ast))]


def make_pair(seed: int) -> Pair:
    chance = random.Random(f"opts {seed}")
    target = chance.choice(TARGETS)
    kind = chance.random()
    if kind > 1 - SPECIAL_SHARE:
        name = chance.choice(SPECIAL)
        ast = kernel(name)
    elif kind < 0.5:
        name = chance.choice([each for each in SCHEDULED if each not in SPECIAL])
        ast = kernel(name)
    elif kind < 0.7:
        name = chance.choice(ORDERED)
        ast = kernel(name)
    else:
        found: list[UOp] = []
        while not found:
            case = chance.randrange(CASES_WITH_KERNELS)
            found = kernels_of_case(case)
        number = chance.randrange(len(found))
        name, ast = f"kernel {number} of case {case}", found[number]
    return Pair(seed, name, ast, draw_opts(ast, chance, target), target)


def draw_opts(ast: UOp, chance: random.Random, target: Target) -> tuple[Opt, ...]:
    """Opts that are legal one after the other. What is not legal must be refused with a reason, whatever it is."""
    sink = recognise_accumulators(ast)
    opts: list[Opt] = []
    for number in range(chance.randint(1, 16)):
        opt = draw_rare_opt(sink, chance) if number < FIRST else None
        opt = opt or draw_opt(sink, chance)
        if opt is None or len(opts) == MAX_OPTS:
            continue
        try:
            made = apply_opt(sink, opt, target)
        except KernelOptError:
            continue
        view = view_kernel(made)
        elements = math.prod(size_of(axis) for axis in view.axes if axis.arg.kind.is_tile)
        threads = math.prod(size_of(axis) for axis in view.of_kind(AxisType.LOCAL))
        if elements <= MAX_ELEMENTS and threads <= MAX_THREADS:
            opts.append(opt)
            sink = made
    return tuple(opts)


def draw_rare_opt(sink: UOp, chance: random.Random) -> Opt | None:
    view = view_kernel(sink)
    proposed = [(op, axis, argument) for op in RARE for axis, argument in TRANSFORMS[op].candidates(view)]
    if not proposed or chance.random() < 0.5:
        return None
    op = chance.choice(list(dict.fromkeys(each[0] for each in proposed)))
    _, axis, argument = chance.choice([each for each in proposed if each[0] is op])
    return Opt(op, view.axes.index(axis), argument)


def draw_opt(sink: UOp, chance: random.Random) -> Opt | None:
    view = view_kernel(sink)
    op = chance.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
    if op is OptOps.NOLOCALS or not view.axes:
        return Opt(OptOps.NOLOCALS)
    if chance.random() < 0.8:
        proposed = list(TRANSFORMS[op].candidates(view))
        if not proposed:
            return None
        axis, argument = chance.choice(proposed)
        return Opt(op, view.axes.index(axis), argument)
    position = chance.randrange(-1, len(view.axes) + 1)
    size = size_of(view.axes[position % len(view.axes)])
    return Opt(op, position, chance.choice((0, 1, 2, 3, 4, 5, 6, 7, 8, 16, size, -2)))


# ---------------------------------------------------------------- running them


def check_pair(pair: Pair) -> str | None:
    """What went wrong, or None."""
    data = contents(pair.ast, pair.seed)
    want = expected(pair.ast, data)
    try:
        got = run_on_emulator(pair, data)
    except Exception as error:  # a refusal of what was drawn as legal, or a check of the emulator
        return f"{type(error).__name__}: {error}"
    wrong = [slot for slot, values in want.items() if not np.array_equal(got[slot], values)]
    return f"differs in buffer {wrong[0]}: {got[wrong[0]]} against {want[wrong[0]]}" if wrong else None


def run_on_emulator(pair: Pair, data: dict[UOp, np.ndarray]) -> dict[int, np.ndarray]:
    optimised = optimise(pair.ast.replace(arg=KernelInfo("fuzzed", pair.opts)), pair.target)
    verify_kernel(optimised)
    program = lower(optimised, pair.target)
    verify_program(program)
    by_slot = {node.arg.slot: values.copy() for node, values in data.items()}
    run_program(program, [by_slot[p.slot] for p in program.params], [p.is_read for p in program.params])
    return by_slot


def check_on_device(pair: Pair, device: str) -> str | None:
    """The same on a device that compiles; None as well where the opts ask for what it has not."""
    data = contents(pair.ast, pair.seed)
    driver = open_driver(device)
    try:
        with Context(CACHE=0, BEAM=0):
            compiled = compile_kernel(pair.ast.replace(arg=KernelInfo("fuzzed", pair.opts)), device)
    except KernelOptError:
        return None
    except Exception as error:  # whatever a renderer or a toolchain says is a finding
        return f"{device}: {type(error).__name__}: {error}"
    memories = {}
    for node, values in data.items():
        memory = driver.allocate(max(values.nbytes, 1))
        driver.copy_in(memory, 0, memoryview(np.ascontiguousarray(values)).cast("B"))
        memories[node.arg.slot] = memory
    places = [(memories[slot], 0) for slot in sorted(memories)]
    driver.prepare([(compiled.handle, places)]).run()
    driver.synchronize()
    for slot, values in expected(pair.ast, data).items():
        got = np.empty_like(values)
        driver.copy_out(memories[slot], 0, memoryview(got).cast("B"))
        if not np.array_equal(got, values):
            return f"{device}: differs in buffer {slot}: {got} against {values}"
    return None


def compiling_devices() -> list[str]:
    """The devices here that compile and can be asked often."""
    found = ["CPU"]
    try:
        open_driver("OPENCL")
        found.append("OPENCL")
    except TilewrightError:
        pass
    return found


def examine(seed: int, devices: list[str]) -> str | None:
    """The text of a failure, made small, or None."""
    pair = make_pair(seed)
    failure = check_pair(pair)
    check: Check = check_pair
    for device in devices:
        if failure is None and seed % PAIRS_PER_COMPILATION[device] == 0:
            check = functools.partial(check_on_device, device=device)
            failure = check(pair)
    if failure is None:
        return None
    small = minimise(pair, check)
    return f"{small}\n  {check(small)}"


def minimise(pair: Pair, check: Check) -> Pair:
    """The pair without every opt that the failure does not need."""
    for number in itertools.count():
        if number >= len(pair.opts):
            return pair
        fewer = replace(pair, opts=pair.opts[:number] + pair.opts[number + 1 :])
        failure = check(fewer)
        if failure is not None and "KernelOptError" not in failure:
            return minimise(fewer, check)
    return pair


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=None)
    arguments = parser.parse_args()
    devices = compiling_devices()
    if arguments.seed is not None and arguments.seconds == 0:
        print(make_pair(arguments.seed))
        failure = examine(arguments.seed, devices)
        print(failure or "as it should be")
        return failure is not None
    first = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(1 << 40)
    deadline = time.monotonic() + arguments.seconds
    failures = 0
    for seed in itertools.count(first):
        if time.monotonic() > deadline:
            break
        failure = examine(seed, devices)
        if failure is not None:
            failures += 1
            print(failure, flush=True)
        if seed % 500 == 0:
            forget_kernels()
    print(f"{seed - first} pairs from seed {first} on, {failures} failures, devices PYTHON {' '.join(devices)}")
    return failures > 0


if __name__ == "__main__":
    sys.exit(main())
