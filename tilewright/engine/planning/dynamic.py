"""The choice between static and dynamic kernels. In: the kernels of a plan. Out: what to compile for each: the kernel
as it is, or a dynamic one that others of its outline share, with the values of its variables.

A program over sequences of any length has the same kernels at each, in other sizes. The first sizes are compiled as
they are, which is the fastest code. Where more come, a kernel of little work becomes one whose sizes, strides and
numbers are arguments (docs/decisions/0031): a further length compiles nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from tilewright.base.config import options
from tilewright.base.records import NamedTuple
from tilewright.engine.compilation.compile import LoadedKernel, is_compiled
from tilewright.engine.planning.stored_schedules import Binding
from tilewright.engine.recent import KERNELS_PER_PLAN, RecentTable
from tilewright.graph.uop import UOp
from tilewright.runtime.device import open_driver

if TYPE_CHECKING:  # a process that finds its plan on disk does not import it
    from tilewright.graph.kernels.outline import DynamicKernel, Outline

# The number of plans with static kernels of an outline, each in other sizes, before a dynamic one is compiled.
MIN_PLANS = 2
# The most static kernels of an outline in one plan; where there are more, all of them are dynamic.
MAX_ALIKE = 4
# The most operations and bytes of a dynamic kernel. Its loops are not tiled, and one thread runs it: at this limit it
# takes about a tenth of a millisecond longer, less than building the graph of a run.
MAX_WORK = 1 << 20
# Dynamic kernels of one outline: others are made where sizes exceed the bounds of the first.
MAX_DYNAMIC = 8


class Form(NamedTuple):
    """What to compile in place of a kernel: itself, or a dynamic one with these values."""

    sink: UOp
    values: dict[str, int] | None = None
    operations: int = 0
    bytes_moved: int = 0


class BoundKernel(LoadedKernel):
    """A dynamic kernel with the values of its variables."""

    __slots__ = ("values",)

    def __init__(self, values: dict[str, int], *facts: Any) -> None:
        super().__init__(*facts)
        self.values = values


class _Family:
    """The kernels of one outline: the numbers of those that were compiled as they are, one of each plan that had any;
    and the dynamic ones."""

    __slots__ = ("dynamic", "static")

    def __init__(self) -> None:
        self.static: list[tuple[int, ...]] = []
        self.dynamic: list[DynamicKernel] = []


_families: RecentTable[tuple[Any, ...], _Family] = RecentTable(KERNELS_PER_PLAN)
# The kernels of the first plan, where they are few: a program that has no other needs no outlines.
_first: list[tuple[UOp, str]] = []


def choose_forms(wanted: Sequence[tuple[UOp, str]]) -> list[Form]:
    """A form for each kernel of a plan."""
    if not _first and not len(_families) and len(wanted) <= MAX_ALIKE:
        _first.extend(wanted)
        return [Form(sink) for sink, _ in wanted]
    if _first and not len(_families):
        for key, alike in _outlined(_first, is_new=False).items():
            _families[key] = _Family()
            _families[key].static.append(alike[0][1].numbers)
    found = {pair: Form(pair[0]) for pair in wanted}
    for key, alike in _outlined(found).items():
        family = _families.get(key)
        if family is None:
            family = _families[key] = _Family()
        unknown = [(pair, outline) for pair, outline in alike if outline.numbers not in family.static]
        if len(family.static) >= MIN_PLANS or len(unknown) > MAX_ALIKE:
            for pair, outline in unknown:
                found[pair] = _dynamic_form(family, pair[0], outline, [other.numbers for _, other in unknown])
        elif unknown:
            family.static.append(unknown[0][1].numbers)
    _families.trim()
    return [found[pair] for pair in wanted]


def _outlined(
    wanted: Iterable[tuple[UOp, str]], is_new: bool = True
) -> dict[tuple[Any, ...], list[tuple[tuple[UOp, str], Outline]]]:
    """The kernels that may be dynamic, by the key of their outline; of new ones, those that are not compiled yet."""
    from tilewright.graph.kernels.outline import outline_of

    found: dict[tuple[Any, ...], list[tuple[tuple[UOp, str], Outline]]] = {}
    for sink, device in wanted:
        if open_driver(device).shares_kernels and not (is_new and is_compiled(sink, device)):
            outline = outline_of(sink)
            # A sum over a size that is not known has other vectors and levels than one over a constant: its last bits
            # would depend on the sizes that came before.
            if outline is not None and (options.DYNAMIC_KERNELS > 1 or not outline.adds_floats):
                found.setdefault(outline.key, []).append(((sink, device), outline))
    return found


def _dynamic_form(family: _Family, sink: UOp, outline: Outline, alike: list[tuple[int, ...]]) -> Form:
    """The dynamic kernel of a small one; a large one stays as it is. `alike` are the numbers of others in its plan."""
    from tilewright.codegen.pipeline import estimate_work  # not needed where no kernel is of a known outline
    from tilewright.graph.kernels.outline import make_dynamic

    operations, bytes_moved = estimate_work(sink)
    if operations + bytes_moved > MAX_WORK:
        return Form(sink)
    for dynamic in family.dynamic:
        values = dynamic.values_for(outline.numbers)
        if values is not None:
            return Form(dynamic.sink, values, operations, bytes_moved)
    if len(family.dynamic) == MAX_DYNAMIC:
        return Form(sink)
    known = [*family.static, *(dynamic.numbers for dynamic in family.dynamic), *alike]
    made = make_dynamic(sink, outline, known)
    values = None if made is None else made.values_for(outline.numbers)
    if made is None or values is None:
        return Form(sink)
    family.dynamic.append(made)
    return Form(made.sink, values, operations, bytes_moved)


def bind_kernel(kernel: LoadedKernel, wanted: tuple[UOp, str], form: Form) -> LoadedKernel:
    """The kernel that was wanted, from its compiled form."""
    if form.values is None:
        return kernel
    return bound_kernel(kernel, wanted[0].arg.name, form.operations, form.bytes_moved, form.values)


def bound_kernel(
    kernel: LoadedKernel, name: str, operations: int, bytes_moved: int, values: dict[str, int]
) -> BoundKernel:
    handle = open_driver(kernel.device).bind_variables(kernel.handle, values)
    return BoundKernel(values, name, kernel.device, operations, bytes_moved, handle, kernel.stored_key)


def binding_of(kernel: LoadedKernel | None) -> Binding | None:
    """What a stored schedule keeps of a dynamic kernel; None for a static one."""
    if not isinstance(kernel, BoundKernel):
        return None
    return Binding(kernel.name, kernel.operations, kernel.bytes_moved, kernel.values)


def forget_families() -> None:
    """Empties the process's own table, for tests and measurements."""
    _families.clear()
    _first.clear()
