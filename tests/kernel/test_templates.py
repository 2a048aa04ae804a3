"""Templates: one plan is chosen of those that match, the one with the least estimate that can be made; what was chosen
and considered is told to those who listen."""

from __future__ import annotations

import math

import pytest

from tests.issues.test_cpu_cliffs import kernels_of
from tests.kernel.kernels import Builder, add, kernel_of, leaf, matrix_product, mul
from tests.kernel.properties import best_plan, opts_of
from tests.machines import target_of
from tilewright import Tensor
from tilewright.backends.cpu.device import cpu_target
from tilewright.backends.cuda.device import cuda_target
from tilewright.base.dtype import dtypes
from tilewright.base.events import Event, subscribe
from tilewright.base.target import Target
from tilewright.graph import build
from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.records import Opt, OptOps
from tilewright.graph.uop import UOp
from tilewright.graph.walk import size_of, toposort
from tilewright.kernel.axes import KernelView, stride, view_kernel
from tilewright.kernel.optimise import optimise, prepare_kernel
from tilewright.kernel.templates.choose import choose_plan, planned_opts, templates_of
from tilewright.kernel.templates.template import Plan, Template
from tilewright.kernel.templates.vectors import COLUMNS, ROWS

CPU = Target("CPU", cores=2, has_threads=True, max_local_bytes=1 << 20)
CARD = cuda_target()
SMALL = Opt(OptOps.UPCAST, 0, 2)


def view_of(output: UOp, target: Target = CPU) -> KernelView:
    return view_kernel(prepare_kernel(kernel_of(output)), target)


def plans_of(*plans: Plan) -> Template:
    return Template("test", "all kernels", lambda view: True, lambda view, found: plans)


def plan_of(name: str, seconds: float) -> Plan:
    return Plan(name, "", lambda: (SMALL,), lambda: seconds)


def added() -> UOp:
    return add(leaf(0, 64, 64), leaf(1, 64, 64))


def half_product() -> UOp:
    """A product of bfloat16 that float32 accumulates."""
    shape = (1024, 512, 1024)
    left = build.expand(build.reshape(leaf(0, 1024, 512, dtype=dtypes.bfloat16), (1024, 512, 1)), shape)
    right = build.expand(build.reshape(leaf(1, 512, 1024, dtype=dtypes.bfloat16), (1, 512, 1024)), shape)
    product = mul(build.cast(left, dtypes.float32), build.cast(right, dtypes.float32))
    return build.reduce_axis(Ops.ADD, product, (1,))


KERNELS: dict[str, Builder] = {
    "elementwise": added,
    "rows": lambda: build.reduce_axis(Ops.ADD, leaf(0, 64, 512), (1,)),
    "columns": lambda: build.reduce_axis(Ops.ADD, leaf(0, 512, 64), (0,)),
    "transpose": lambda: build.contiguous(build.permute(leaf(0, 64, 64), (1, 0))),
    "contraction": lambda: matrix_product(64, 64, 64),
}


@pytest.mark.parametrize("name", KERNELS)
def test_each_kernel_has_its_template(name: str) -> None:
    assert choose_plan(view_of(KERNELS[name]())).template == name
    assert choose_plan(view_of(KERNELS[name](), CARD)).template == name


@pytest.mark.parametrize("target", [CPU, CARD], ids=("cores", "groups"))
def test_names_differ_and_the_last_takes_any_kernel(target: Target) -> None:
    templates = templates_of(target)
    assert len({template.name for template in templates}) == len(templates)
    assert opts_of(templates[-1], view_of(added(), target)) is not None


def test_the_least_estimate_is_chosen() -> None:
    choice = best_plan(plans_of(plan_of("a", 2.0), plan_of("b", 1.0)), view_of(added()))
    assert choice is not None
    assert choice.plan.name == "b"
    assert [(each.plan.name, each.seconds) for each in choice.considered] == [("a", 2.0), ("b", 1.0)]


def test_a_plan_that_cannot_be_made_gives_way_to_the_next() -> None:
    refused = Plan("refused", "", lambda: None)
    choice = best_plan(plans_of(refused, Plan("made", "", lambda: (SMALL,))), view_of(added()))
    assert choice is not None
    assert choice.plan.name == "made"
    assert best_plan(plans_of(refused), view_of(added())) is None


def test_only_the_chosen_plan_is_made() -> None:
    made: list[str] = []

    def make(name: str) -> tuple[Opt, ...]:
        made.append(name)
        return (SMALL,)

    plans = [plan_of(*pair)._replace(make=lambda pair=pair: make(pair[0])) for pair in (("slow", 2.0), ("fast", 1.0))]
    best_plan(plans_of(*plans), view_of(added()))
    assert made == ["fast"]


def test_cores_are_plans_with_estimates() -> None:
    """Of all tensor cores that take a product, the one with the least estimate; what others take is told."""
    choice = choose_plan(view_of(half_product(), CARD))
    seconds = {each.plan.name: each.seconds or 0.0 for each in choice.considered}
    assert len(seconds) > 1
    assert all(1e-7 < each < 1e-3 for each in seconds.values())
    assert seconds[choice.plan.name] == min(seconds.values())


def test_numbers_of_one_part_are_not_multiplied_in_three() -> None:
    """bfloat16 is exact in float32, so that the core for float32 in parts would take it too."""
    considered = choose_plan(view_of(half_product(), CARD)).considered
    names = [each.plan.name for each in considered]
    assert "tensor core wgmma_bfloat16_128x128" in names
    assert not any("float32x3" in name for name in names)


def test_a_plan_of_later_templates_leaves_the_kernel_to_them() -> None:
    def later(seconds: float) -> Plan:
        return plan_of("later", seconds)._replace(make=None)

    assert best_plan(plans_of(plan_of("own", 2.0), later(1.0)), view_of(added())) is None
    choice = best_plan(plans_of(plan_of("own", 1.0), later(2.0)), view_of(added()))
    assert choice is not None
    assert choice.plan.name == "own"


def test_search_starts_from_the_plans_of_every_template_that_matches() -> None:
    view = view_of(matrix_product(64, 64, 64))
    found = planned_opts(view)
    assert found[0] == choose_plan(view).opts
    assert opts_of(COLUMNS, view) in found
    assert opts_of(ROWS, view) in found


def test_listeners_are_told_the_template_and_its_plan() -> None:
    told: list[Event] = []
    with subscribe(told.append, "decision"):
        optimise(kernel_of(matrix_product(64, 64, 64)), CPU)
    reasons = [str(event.fields["reason"]) for event in told]
    assert any(reason.startswith("template contraction, plan packed panels: ") for reason in reasons)


@pytest.mark.parametrize("cores", [1, 2, 16])
@pytest.mark.parametrize("rows", [2, 3, 7])
def test_a_gather_of_few_rows_takes_one_row_at_a_time(rows: int, cores: int) -> None:
    """2x50000 took 2.5 times as long as torch's: its long loop was the one that cores share, outside of the rows. Of a
    processor that gathers no vectors; others take a vector of each row."""
    (ast,) = kernels_of(Tensor.empty(rows, 50_000).gather(1, Tensor.empty(rows, 50_000, dtype="int32")))
    view = view_kernel(optimise(ast, target_of("neoverse-n1", cores=cores)))
    *around, inner = (axis for axis in view.axes if axis.arg.kind in (AxisType.THREAD, AxisType.LOOP))
    assert all(stride(store, inner) == 1 for store in view.stores)
    assert size_of(inner) > 100
    assert math.prod(size_of(axis) for axis in around if axis.arg.kind is AxisType.THREAD) >= cores


def test_an_index_of_few_outputs_is_converted_inside_the_loop_over_terms() -> None:
    """A scatter along rows of 14 stored its converted index first, and scatter_add of 10 took twice as long as torch's:
    its last vector of comparisons, of two elements, was not counted."""
    lanes = cpu_target().lanes(dtypes.float32)
    for width, is_added in ((3, False), (2 * lanes + 1, True), (3 * lanes - 1, False)):
        x, index = Tensor.empty(300, width), Tensor.empty(300, width, dtype="int64")
        made = x.scatter_add(1, index, x + 1) if is_added else x.scatter(1, index, x + 1)
        *_, ast = kernels_of(made)
        assert OptOps.SCATTER in [opt.op for opt in optimise(ast, cpu_target()).arg.applied]
        assert any(node.op is Ops.PARAM and node.dtype is dtypes.int64 for node in toposort(ast))
