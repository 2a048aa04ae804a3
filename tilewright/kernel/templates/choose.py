"""Which plan a kernel gets. In: a kernel for a target. Out: the plan with the least estimate, and its opts.

The choice follows from strides, sizes and facts of the target, never from the name of a device or an operation."""

from __future__ import annotations

from tilewright.base.errors import InternalError
from tilewright.base.target import Target
from tilewright.kernel.apply import describe_axes
from tilewright.kernel.axes import KernelView
from tilewright.kernel.templates.cores import CORE_TEMPLATES
from tilewright.kernel.templates.template import Choice, Considered, Opts, Template


def choose_opts(view: KernelView) -> Opts:
    return choose_plan(view).opts


def choose_plan(view: KernelView) -> Choice:
    """The plan of the first template that has one for the kernel. The last of each list takes any kernel."""
    considered: tuple[Considered, ...] = ()
    for template in templates_of(view.target):
        plans = consider_plans(template, view)
        considered += plans
        choice = make_least(plans)
        if choice is not None:
            return choice._replace(considered=considered)
    raise InternalError(f"no template takes a kernel with the axes {describe_axes(view)}")


def templates_of(target: Target) -> tuple[Template, ...]:
    if not target.has_local:
        return CORE_TEMPLATES
    from tilewright.kernel.templates.groups import GROUP_TEMPLATES  # few processes need it

    return GROUP_TEMPLATES


def make_least(considered: tuple[Considered, ...]) -> Choice | None:
    """The plan with the least estimate of those whose opts are legal. None where no plan is, or where the least
    estimate is that of leaving the kernel to later templates."""
    for template, plan, _ in sorted(considered, key=lambda each: each.seconds or 0.0):
        if plan.make is None:
            return None
        opts = plan.make()
        if opts is not None:
            return Choice(template, plan, opts, considered)
    return None


def consider_plans(template: Template, view: KernelView) -> tuple[Considered, ...]:
    """The plans of a template, with their estimates where there are several."""
    found = template.match(view)
    plans = () if found is None else tuple(template.plans(view, found))
    return tuple(
        Considered(template.name, plan, plan.estimate() if plan.estimate and len(plans) > 1 else None) for plan in plans
    )


def planned_opts(view: KernelView) -> list[Opts]:
    """The opts of the chosen plan, then those of every other legal plan of every template that matches: where search
    starts."""
    considered = [each for template in templates_of(view.target) for each in consider_plans(template, view)]
    made = [plan.make() for _, plan, _ in considered if plan.make is not None]
    return list(dict.fromkeys([choose_opts(view), *(opts for opts in made if opts is not None)]))
