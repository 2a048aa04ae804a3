"""What a template is. In: a kernel for a target. Out: the plans that a template has for it, each with its opts, the
reason and an estimate. `choose` takes the plan with the least estimate, and search starts from all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tilewright.base.records import NamedTuple
from tilewright.graph.records import Opt
from tilewright.kernel.axes import KernelView

Opts = tuple[Opt, ...]


class Plan(NamedTuple):
    """One way to run a kernel. `make` returns the opts, or None where one of them is illegal or exceeds a limit of the
    target; it is called only for a chosen plan, because applying opts takes most of the stage's time. A plan without
    `make` stands for the templates that follow in the list: where its estimate is the least, the template leaves the
    kernel to them. `estimate` returns the seconds of one run; plans without one are tried in the order of the
    template's list."""

    name: str
    reason: str
    make: Callable[[], Opts | None] | None
    estimate: Callable[[], float] | None = None


class Template(NamedTuple):
    """A family of kernels. `match` returns what `plans` needs to know of a kernel, or None for a kernel of another
    family. Templates are tried in the order of their list; the first that has a legal plan is taken."""

    name: str
    kernels: str  # the kernels of the family, in words
    match: Callable[[KernelView], Any]
    plans: Callable[[KernelView, Any], Iterable[Plan]]


class Considered(NamedTuple):
    """A plan that was compared with others, and its estimate. Templates before the chosen one may have contributed
    plans."""

    template: str
    plan: Plan
    seconds: float | None


class Choice(NamedTuple):
    """The opts for a kernel, the plan that made them, and the plans that it was compared with."""

    template: str
    plan: Plan
    opts: Opts
    considered: tuple[Considered, ...]
