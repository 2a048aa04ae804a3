"""Every plan for matrix products on the CPU: its estimate beside the time of one core, plans in turns, CPU time.

    TILEWRIGHT_THREADS=1 CACHE=0 python -m bench.product_plans nn:17x2000x2000 nt:48x256x256 tn:4x1000x64

A shape is rows x depth x columns; `t` says which factor is transposed in memory. The last column is the time of the
chosen plan over that of the fastest."""

from __future__ import annotations

import sys
import time

import numpy as np

from tilewright import dtypes
from tilewright.codegen.pipeline import program_params
from tilewright.engine.compilation.compile import compile_with
from tilewright.engine.compilation.verify import upload
from tilewright.graph import build
from tilewright.graph.ops import Ops, ParamArg
from tilewright.graph.records import Opt
from tilewright.graph.uop import UOp
from tilewright.kernel.axes import view_kernel
from tilewright.kernel.optimise import prepare_kernel
from tilewright.kernel.templates.choose import consider_plans, make_least, templates_of
from tilewright.kernel.templates.products import CONTRACTION
from tilewright.runtime.device import Runner, open_driver
from tilewright.schedule.pipeline import schedule

ROUNDS = 5
SECONDS_OF_A_ROUND = 2e-3
MAX_RUNS = 200


def product_kernel(layouts: str, rows: int, depth: int, columns: int) -> UOp:
    params: list[UOp] = []

    def operand(first: int, second: int, layout: str) -> UOp:
        params.append(UOp(Ops.PARAM, dtypes.float32, (), ParamArg(len(params), first * second, "CPU")))
        if layout == "t":
            return build.permute(build.reshape(params[-1], (second, first)), (1, 0))
        return build.reshape(params[-1], (first, second))

    shape = (rows, depth, columns)
    left = build.reshape(operand(rows, depth, layouts[0]), (rows, depth, 1))
    right = build.reshape(operand(depth, columns, layouts[1]), (1, depth, columns))
    product = build.alu(Ops.MUL, build.expand(left, shape), build.expand(right, shape))
    (item,) = schedule([build.reduce_axis(Ops.ADD, product, (1,))], params, "CPU").items
    assert item.ast is not None
    return item.ast


def plans_of(ast: UOp) -> tuple[dict[str, tuple[Opt, ...]], dict[str, float], str]:
    """The opts of each plan that can be made and its estimate, and the name of the chosen one."""
    target = open_driver("CPU").target
    view = view_kernel(prepare_kernel(ast), target)
    considered = consider_plans(CONTRACTION, view)
    made = {plan.name: plan.make() for _, plan, _ in considered if plan.make is not None}
    opts = {name: found for name, found in made.items() if found is not None}
    seconds = {plan.name: estimate or 0.0 for _, plan, estimate in considered}
    later = templates_of(target)[templates_of(target).index(CONTRACTION) + 1 :]
    others = (choice for template in later if (choice := make_least(consider_plans(template, view))) is not None)
    opts["columns"] = next(others).opts
    chosen = make_least(consider_plans(CONTRACTION, view))
    return opts, seconds, "columns" if chosen is None else chosen.plan.name


def runner_of(ast: UOp, opts: tuple[Opt, ...]) -> Runner:
    driver, numbers = open_driver("CPU"), np.random.default_rng(0)
    handle = compile_with(ast, "CPU", opts).handle
    data = [numbers.standard_normal(param.size).astype(np.float32).tobytes() for param in program_params(ast)]
    return driver.prepare([(handle, upload(driver, data))])


def seconds_of_runs(runner: Runner, count: int) -> float:
    start = time.process_time()
    for _ in range(count):
        runner.run()
    return (time.process_time() - start) / count


def measure(ast: UOp, opts: dict[str, tuple[Opt, ...]]) -> dict[str, float]:
    runners = {name: runner_of(ast, each) for name, each in opts.items()}
    first = {name: (runner.run(), seconds_of_runs(runner, 1))[1] for name, runner in runners.items()}
    counts = {name: min(MAX_RUNS, max(1, int(SECONDS_OF_A_ROUND / max(each, 1e-7)))) for name, each in first.items()}
    rounds = [{name: seconds_of_runs(runner, counts[name]) for name, runner in runners.items()} for _ in range(ROUNDS)]
    return {name: min(each[name] for each in rounds) for name in runners}


def main() -> None:
    for argument in sys.argv[1:]:
        layouts, sizes = argument.split(":")
        ast = product_kernel(layouts, *map(int, sizes.split("x")))
        opts, estimates, chosen = plans_of(ast)
        times = measure(ast, opts)
        shown = ", ".join(
            f"{name} {seconds * 1e3:.3f} ms (estimate {estimates.get(name, 0.0) * 1e3:.3f})"
            for name, seconds in times.items()
        )
        print(f"{argument}: {shown}; chosen {chosen}, {times[chosen] / min(times.values()):.2f}", flush=True)


if __name__ == "__main__":
    main()
