"""Planted bugs. In: a name. Out: the package of this process with one step broken, as a compiler engineer might do.
Each has a program in `programs.py` that goes wrong with it and is right without. A bug whose place is no longer there
is a `StaleBugError`: it would break nothing."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

BUGS: dict[str, Callable[[], None]] = {}
STALE_STATUS = 73  # of a process whose bug cannot be planted


class StaleBugError(Exception):
    """A planted bug exchanges what the package no longer has."""


def plant(name: str) -> None:
    try:
        BUGS[name]()
    except (ImportError, AttributeError, KeyError) as error:
        raise StaleBugError(
            f"the bug {name} exchanges what is not in the package any more: plant it in tests/debug/planted/bugs.py "
            f"where that step is done now ({type(error).__name__}: {error})"
        ) from error


def bug(function: Callable[[], None]) -> Callable[[], None]:
    BUGS[function.__name__] = function
    return function


def module(name: str) -> Any:
    return importlib.import_module(f"tilewright.{name}")


def exchange(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """What a module, a class or an object has by that name becomes what `make` makes of it."""
    setattr(owner, name, make(getattr(owner, name)))


def exchange_entry(table: dict[Any, Any], key: Any, make: Callable[[Any], Any]) -> None:
    table[key] = make(table[key])


def exchange_rule(name: str, result: Callable[..., Any]) -> None:
    simplify = module("graph.simplify")
    all_rules = (simplify.SCALAR_RULES, simplify.KERNEL_RULES)
    found = [rule for rules in all_rules for rule in rules if rule.name == name]
    if not found:
        raise StaleBugError(f"no rule is called {name}")
    for rule in found:
        rule.result = result
    for rules in all_rules:
        rules.matchers.clear()


def exchange_pass(pipeline: str, name: str, run: Callable[[Any, Callable[[Any], None]], None]) -> None:
    """`run` is given the state and the pass as it was."""
    found = module(pipeline)
    if name not in [step.name for step in found.PASSES]:
        raise StaleBugError(f"no pass of {pipeline} is called {name}")
    found.PASSES = tuple(
        step if step.name != name else step._replace(run=(lambda state, inner=step.run: run(state, inner)))
        for step in found.PASSES
    )


def choose(opts: Callable[[Any], tuple[Any, ...] | None]) -> None:
    """Has other opts chosen than those of the templates' plan, where `opts` gives some."""

    def planted(inner: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def choose_plan(view: Any) -> Any:
            choice, found = inner(view), opts(view)
            return choice if found is None else choice._replace(opts=found)

        return choose_plan

    exchange(module("kernel.optimise"), "choose_plan", planted)


# ---------------------------------------------------------------- rules


@bug
def wrong_simplify_rule() -> None:
    """x / 4 becomes x * 0.5."""
    mul = module("graph.simplify.mul")

    def halved(x: Any, c: Any) -> Any:
        made = mul.multiply_by_reciprocal(x, c)
        return None if made is None else made.replace(src=(x, mul.number(x.dtype, 2.0 / c.arg)))

    exchange_rule("divide-by-power-of-two", halved)


@bug
def bad_constant_folding() -> None:
    """A product of two constants is one too large."""
    constants = module("graph.simplify.constants")
    ops = module("graph.ops").Ops

    def folded(node: Any) -> Any:
        made = constants.fold(node)
        is_hit = node.op is ops.MUL and node.dtype.is_float
        return made.replace(arg=made.arg + 1) if is_hit else made

    exchange_rule("fold-binary", folded)


@bug
def wrong_remainder_rule() -> None:
    """x % d is taken for x where x is below 2 * d."""
    divmod_ = module("graph.simplify.divmod")
    exchange_rule("remainder-of-sum", lambda x, d: x if x.vmax < 2 * d.arg else divmod_.remainder_of_sum(x, d))


@bug
def wrong_comparison_rule() -> None:
    """A quotient below c: the bound is one too small."""
    compare = module("graph.simplify.compare")
    uop = module("graph.uop")

    def compared(x: Any, d: Any, c: Any) -> Any:
        made = compare.compare_quotient(x, d, c)
        if made is None or made.op.name != "CMPLT" or not made.src[1].is_const:
            return made
        return made.replace(src=(made.src[0], uop.const(made.src[1].dtype, made.src[1].arg - 1)))

    exchange_rule("quotient-below", compared)


# ---------------------------------------------------------------- opts


@bug
def illegal_opt() -> None:
    """UPCAST by 4 of an axis that 4 does not divide, which no check refuses: the elements behind the last tile are
    never computed."""
    axes, upcast, records = module("kernel.axes"), module("kernel.transforms.upcast"), module("graph.records")
    exchange(
        upcast,
        "check_amount",
        lambda inner: lambda view, axis, amount, name: None if amount == 4 else inner(view, axis, amount, name),
    )
    rounded = lambda axis, amount: module("graph.uop").index_const(axis.src[0].arg // amount)  # noqa: E731
    exchange(
        axes,
        "quotient_of",
        lambda inner: lambda axis, amount: inner(axis, amount) or (rounded(axis, amount) if amount == 4 else None),
    )

    def opts(view: Any) -> tuple[Any, ...] | None:
        axes = [axis for axis in view.axes if axis.src[0].is_const]
        if len(view.axes) == 1 and len(axes) == 1 and axes[0].src[0].arg % 4 and axes[0].src[0].arg > 4:
            return (records.Opt(records.OptOps.UPCAST, 0, 4),)
        return None

    choose(opts)


@bug
def wrong_tail_mask() -> None:
    """PADTO masks one element too many."""
    pad, registry, records = (
        module("kernel.transforms.pad"),
        module("kernel.transforms.registry"),
        module("graph.records"),
    )

    def apply(view: Any, axis: Any, multiple: int) -> Any:
        size = pad.size_of(axis)
        longer = pad.make_range(-(-size // multiple) * multiple, axis.arg.id, axis.arg.kind)
        return pad.mask_axis(pad.exchange_axis(view.sink, axis, longer), longer, longer < size - 1)

    exchange_entry(registry.TRANSFORMS, records.OptOps.PADTO, lambda padto: padto._replace(apply=apply))

    def opts(view: Any) -> tuple[Any, ...] | None:
        if len(view.axes) == 1 and view.axes[0].src[0].is_const and view.axes[0].src[0].arg % 8:
            return (records.Opt(records.OptOps.PADTO, 0, 8), records.Opt(records.OptOps.UPCAST, 0, 8))
        return None

    choose(opts)


# ---------------------------------------------------------------- passes


@bug
def wrong_index_width() -> None:
    """Index maths in 8 bits."""
    addresses, dtypes = module("codegen.addresses"), module("base.dtype").dtypes
    exchange(addresses, "index_dtype", lambda _: lambda sink: dtypes.int8)


@bug
def short_symbolic_loop() -> None:
    """A loop whose length is a variable leaves out its last iteration."""
    ops, walk = module("graph.ops").Ops, module("graph.walk")

    def shorter(node: Any, src: tuple[Any, ...]) -> Any:
        return node.with_src((src[0] - 1,)) if node.op is ops.RANGE and not src[0].is_const else None

    def run(state: Any, inner: Callable[[Any], None]) -> None:
        inner(state)
        state.sink = walk.map_graph(state.sink, shorter)

    exchange_pass("codegen.pipeline", "separate_loops", run)


@bug
def wrong_decompose_rule() -> None:
    """exp2 is too large by a thousandth."""
    decompose, ops = module("codegen.emulation.decompose"), module("graph.ops").Ops
    exchange_entry(decompose.BUILDERS, ops.EXP2, lambda inner: lambda node, native: inner(node, native) * 1.001)


@bug
def wrong_reduce_identity() -> None:
    """A maximum begins at 0."""
    linearise, ops = module("codegen.loops.linearise"), module("graph.ops").Ops
    exchange(linearise, "reduce_identity", lambda inner: lambda op, dtype: 0 if op is ops.MAX else inner(op, dtype))


@bug
def short_partial_sums() -> None:
    """The partial sums of a split reduction are kept in float16."""
    prepare, build, walk = module("schedule.preparation.prepare"), module("graph.build"), module("graph.walk")
    dtypes = module("base.dtype").dtypes

    def planted(inner: Callable[..., Any]) -> Callable[..., Any]:
        def split_reduction(node: Any, target: Any) -> Any:
            made = inner(node, target)
            if made is None:
                return None
            partial = next(n for n in walk.toposort(made) if n.op.name == "REDUCE_AXIS")
            rounded = build.cast(build.cast(partial, dtypes.float16), partial.dtype)
            return walk.substitute(made, {partial: rounded})

        return split_reduction

    exchange(prepare, "split_reduction", planted)


@bug
def dropped_barrier() -> None:
    """The partials of a work-group are read before all are written."""
    pipeline, ops, walk = module("codegen.pipeline"), module("graph.ops").Ops, module("graph.walk")

    def without(node: Any, src: tuple[Any, ...]) -> Any:
        return src[0] if node.op is ops.BARRIER and src[0].op is ops.END else None

    exchange(pipeline, "lower_groups", lambda inner: lambda *given: walk.map_graph(inner(*given), without))
    _group_rows()


@bug
def slot_used_twice() -> None:
    """All reductions of a work-group have their partials in the same local memory, without a barrier between."""
    pipeline, ops, walk = module("codegen.pipeline"), module("graph.ops").Ops, module("graph.walk")

    def first_slot(node: Any, src: tuple[Any, ...]) -> Any:
        return node.replace(arg=replace(node.arg, slot=0)) if node.op is ops.DEFINE_LOCAL else None

    replace = module("base.records").replace
    exchange(pipeline, "lower_groups", lambda inner: lambda *given: walk.map_graph(inner(*given), first_slot))
    _group_rows()


def _group_rows() -> None:
    """Reductions of a row are shared by a work-group, also on the emulator."""
    records, ops = module("graph.records"), module("graph.ops")

    apply, axes = module("kernel.apply"), module("kernel.axes")

    def opts(view: Any) -> tuple[Any, ...] | None:
        found: list[Any] = []
        while view.target.has_local:
            rows = [
                position
                for position, axis in enumerate(view.axes)
                if axis.arg.kind is ops.AxisType.REDUCE and axis.src[0].is_const and axis.src[0].arg <= 32
            ]
            if not rows:
                return tuple(found) or None
            found.append(records.Opt(records.OptOps.GROUP, rows[0], view.axes[rows[0]].src[0].arg))
            view = axes.view_kernel(apply.apply_opt(view.sink, found[-1], view.target), view.target)
        return None

    choose(opts)


# ---------------------------------------------------------------- the schedule


@bug
def overlapping_temps() -> None:
    """A temporary buffer's memory is given away one step too early."""
    memory = module("schedule.steps.memory")

    def shorter(found: dict[Any, tuple[int, int]]) -> dict[Any, tuple[int, int]]:
        return {slot: (first, last - 1 if last > first else last) for slot, (first, last) in found.items()}

    exchange(memory, "lifetimes", lambda inner: lambda items: shorter(inner(items)))


@bug
def read_after_write() -> None:
    """An update is fused with what it reads, though it overwrites that."""
    order = module("schedule.steps.order")

    def direct(mode: str) -> str:
        return "direct" if mode == "staged" else mode

    exchange(order.ItemBuilder, "_first_mode", lambda inner: lambda self, node: direct(inner(self, node)))


@bug
def missing_signal() -> None:
    """CPU:1 runs its kernels when somebody waits for it, and a copy between devices does not wait."""
    buffer, launches = module("runtime.buffer"), module("engine.planning.launches")
    module("engine.devices")
    open_driver = module("runtime.device").open_driver
    driver = open_driver("CPU:1")
    prepare, copy_out = driver.prepare, driver.copy_out
    pending: list[Callable[[], None]] = []

    def flush() -> None:
        while pending:
            pending.pop(0)()

    class Deferred:
        def __init__(self, given: Any) -> None:
            self.runner = prepare(given)

        def bind(self, *given: Any) -> Callable[[Any], None]:
            step = self.runner.bind(*given)
            return lambda memories: pending.append(lambda: step(list(memories)))

        def __getattr__(self, name: str) -> Any:
            return getattr(self.runner, name)

    def read(memory: Any, offset: int, into: Any) -> None:
        flush()
        copy_out(memory, offset, into)

    def transfer(target: Any, target_device: str, source: Any, source_device: str, nbytes: int) -> None:
        shared = open_driver(source_device).host_view(source[0])
        open_driver(target_device).copy_in(target[0], target[1], shared[source[1] : source[1] + nbytes])

    for name, made in (("prepare", Deferred), ("copy_out", read), ("synchronize", flush)):
        exchange(driver, name, lambda _, made=made: made)
    for place in (buffer, launches):
        exchange(place, "transfer", lambda _: transfer)


# ---------------------------------------------------------------- jit, the disk cache, gradients


@bug
def stale_jit_constant() -> None:
    """A number that is given to a jitted function is no part of what a replay assumes."""
    arguments = module("engine.jit.arguments")
    exchange(
        arguments,
        "flatten",
        lambda inner: lambda value, *rest: (float, 0.0, 1.0) if isinstance(value, float) else inner(value, *rest),
    )


@bug
def stale_cache_entry() -> None:
    """Kernels that differ in a constant are one entry of the disk cache."""
    stored, schedules = module("engine.compilation.stored"), module("engine.planning.stored_schedules")
    ops = module("graph.ops").Ops
    inner = stored.nodes_text

    def text(order: Any, numbers: Any) -> str:
        made = inner(order, numbers).split("\n")
        pairs = zip(order, made, strict=True)
        return "\n".join("CONST" if n.op is ops.CONST and n.dtype.is_float else line for n, line in pairs)

    for place in (stored, schedules):
        exchange(place, "nodes_text", lambda _: text)


@bug
def wrong_gradient_rule() -> None:
    """The gradient of a square root is twice as large."""
    ops = module("graph.ops").Ops

    def planted(inner: Callable[..., Any]) -> Callable[..., Any]:
        return lambda m, g, *rest: tuple(m.multiply(made, m.number(g, 2)) for made in inner(m, g, *rest))

    exchange(ops.SQRT, "gradient", planted)


# ---------------------------------------------------------------- the backend


@bug
def wrong_instruction() -> None:
    """The CPU compares floats with `less or equal` for `less`."""
    instructions, ops = module("backends.cpu.rendering.instructions"), module("graph.ops").Ops
    exchange_entry(instructions._COMPARE, ops.CMPLT, lambda _: ("fcmp ole", "icmp sle", "icmp ule"))


@bug
def wrong_broadcast_lane() -> None:
    """A constant that is broadcast to the lanes of a vector is 0 in the last lane."""
    instructions = module("backends.cpu.rendering.instructions")

    def constant(dtype: Any, value: Any, lanes: int) -> str:
        text = instructions.literal(dtype, value)
        if not lanes:
            return text
        kind = instructions.scalar_type(dtype)
        parts = [f"{kind} {text}"] * (lanes - 1) + [f"{kind} {instructions.literal(dtype, type(value)(0))}"]
        return f"<{', '.join(parts)}>" if dtype.is_float else f"splat ({kind} {text})"

    exchange(instructions, "constant", lambda _: constant)
    for name in ("values", "emitter", "renderer", "elementwise", "loads", "shuffles", "dot_products", "checks"):
        found = module(f"backends.cpu.rendering.{name}")
        if hasattr(found, "constant"):
            found.constant = constant


@bug
def lost_part_of_a_sum() -> None:
    """A sum over several devices leaves out the last of them."""
    shard = module("schedule.sharding.shard")
    exchange(
        shard,
        "all_reduce",
        lambda inner: lambda op, partials, devices: inner(op, partials[:-1] or partials, devices),
    )
