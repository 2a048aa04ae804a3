"""Which plan a kernel gets. In: a kernel for a target. Out: the plan with the least estimate, and its opts.

The choice follows from strides, sizes and facts of the target, never from the name of a device or an operation."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.base.target import Target
from tilewright.kernel.axes import KernelView
from tilewright.kernel.templates.cores import CORE_TEMPLATES
from tilewright.kernel.templates.template import Choice, Considered, Opts, Template


def choose_opts(view: KernelView) -> Opts:
    return choose_plan(view).opts


def choose_plan(view: KernelView) -> Choice:
    """The first template that has a plan for the kernel. The last of each list takes any kernel."""
    found = (best_plan(template, view) for template in templates_of(view.target))
    return next(choice for choice in found if choice is not None)


def templates_of(target: Target) -> tuple[Template, ...]:
    if not target.has_local:
        return CORE_TEMPLATES
    from tilewright.kernel.templates.groups import GROUP_TEMPLATES  # imported where needed: cards alone do

    return GROUP_TEMPLATES


def best_plan(template: Template, view: KernelView) -> Choice | None:
    """The plan of one template with the least estimate; None where the kernel is of another family, or no plan can be
    made."""
    considered = consider_plans(template, view)
    for template_name, plan, _ in sorted(considered, key=lambda each: each.seconds or 0.0):
        opts = plan.make()
        if opts is not None:
            return Choice(template_name, plan, opts, considered)
    return None


def consider_plans(template: Template, view: KernelView) -> tuple[Considered, ...]:
    """The plans of a template, with their estimates where there are several."""
    found = template.match(view)
    plans = () if found is None else tuple(template.plans(view, found))
    return tuple(
        Considered(template.name, plan, plan.estimate() if plan.estimate and len(plans) > 1 else None) for plan in plans
    )


def all_plans(view: KernelView) -> Iterator[Considered]:
    """The plans of every template that matches the kernel, the chosen one's among them."""
    for template in templates_of(view.target):
        yield from consider_plans(template, view)


def opts_of(template: Template, view: KernelView) -> Opts | None:
    """What one template alone chooses."""
    choice = best_plan(template, view)
    return None if choice is None else choice.opts
