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
    """One way to run a kernel. `make` gives the opts, or None where one of them is illegal or does not fit; it is
    called for a plan that is chosen, as applying opts takes most of the stage's time. A plan without it is what the
    templates behind do: where that takes least, the template leaves the kernel to them. `estimate` gives the seconds of
    a run; plans without one are tried in the order in which the template lists them."""

    name: str
    reason: str
    make: Callable[[], Opts | None] | None
    estimate: Callable[[], float] | None = None


class Template(NamedTuple):
    """A family of kernels. `match` gives what `plans` needs to know of a kernel, or None where it is of another family.
    Templates are tried in the order of their list: the first with a plan that can be made is taken."""

    name: str
    kernels: str  # which kernels those are, for people
    match: Callable[[KernelView], Any]
    plans: Callable[[KernelView, Any], Iterable[Plan]]


class Considered(NamedTuple):
    """A plan that was compared with others; `seconds` where it has an estimate. The templates before the chosen one
    may have had plans too."""

    template: str
    plan: Plan
    seconds: float | None


class Choice(NamedTuple):
    """The opts for a kernel, the plan that they are of, and all that it was compared with."""

    template: str
    plan: Plan
    opts: Opts
    considered: tuple[Considered, ...]
