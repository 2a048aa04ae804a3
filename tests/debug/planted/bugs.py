"""Planted bugs. In: a name. Out: the package of this process with one step broken, as a compiler engineer might do.
Each has a program in `programs.py` that goes wrong with it and is right without."""

from __future__ import annotations

import importlib
import itertools
import types
from collections.abc import Callable
from typing import Any

BUGS: dict[str, Callable[[], None]] = {}


def plant(name: str) -> None:
    BUGS[name]()


def bug(function: Callable[[], None]) -> Callable[[], None]:
    BUGS[function.__name__] = function
    return function


def module(name: str) -> Any:
    return importlib.import_module(f"tilewright.{name}")


def exchange_rule(name: str, result: Callable[..., Any]) -> None:
    simplify = module("graph.simplify")
    for rules in (simplify.SCALAR_RULES, simplify.KERNEL_RULES):
        for rule in rules:
            if rule.name == name:
                rule.result = result
        rules.matchers.clear()


def exchange_pass(pipeline: str, name: str, run: Callable[[Any, Callable[[Any], None]], None]) -> None:
    """`run` is given the state and the pass as it was."""
    found = module(pipeline)
    found.PASSES = tuple(
        step if step.name != name else step._replace(run=(lambda state, inner=step.run: run(state, inner)))
        for step in found.PASSES
    )


def choose(opts: Callable[[Any], tuple[Any, ...] | None]) -> None:
    """Lets the heuristic choose other opts where `opts` gives some."""
    optimise = module("kernel.optimise")
    inner = optimise.choose_with_reason

    def chosen(view: Any) -> tuple[tuple[Any, ...], str]:
        found = opts(view)
        return inner(view) if found is None else (found, "planted")

    optimise.choose_with_reason = chosen


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
    """UPCAST by 4 of an axis that 4 does not divide, which no check refuses."""
    common, upcast, records = (
        module("kernel.transforms.common"),
        module("kernel.transforms.upcast"),
        module("graph.records"),
    )
    inner = common.check_amount
    upcast.check_amount = lambda view, axis, amount, name: None if amount == 4 else inner(view, axis, amount, name)

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

    registry.TRANSFORMS[records.OptOps.PADTO] = registry.TRANSFORMS[records.OptOps.PADTO]._replace(apply=apply)

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
    addresses.index_dtype = lambda sink: dtypes.int8


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
    decompose, ops = module("codegen.decompose"), module("graph.ops").Ops
    inner = decompose.BUILDERS[ops.EXP2]
    decompose.BUILDERS[ops.EXP2] = lambda node, native: inner(node, native) * 1.001


@bug
def wrong_reduce_identity() -> None:
    """A maximum begins at 0."""
    linearise, ops = module("codegen.linearise"), module("graph.ops").Ops
    inner = linearise.reduce_identity
    linearise.reduce_identity = lambda op, dtype: 0 if op is ops.MAX else inner(op, dtype)


@bug
def short_partial_sums() -> None:
    """The partial sums of a split reduction are kept in float16."""
    pipeline, dtypes, build = module("schedule.pipeline"), module("base.dtype").dtypes, module("graph.build")
    inner = pipeline.split_reduction

    def split(node: Any, has_local: bool) -> Any:
        made = inner(node, has_local)
        if made is None:
            return None
        partial = next(n for n in module("graph.walk").toposort(made) if n.op.name == "REDUCE_AXIS")
        rounded = build.cast(build.cast(partial, dtypes.float16), partial.dtype)
        return module("graph.walk").substitute(made, {partial: rounded})

    pipeline.split_reduction = split


@bug
def dropped_barrier() -> None:
    """The partials of a work-group are read before all are written."""
    pipeline, ops, walk = module("codegen.pipeline"), module("graph.ops").Ops, module("graph.walk")
    inner = pipeline.lower_groups

    def lowered(*given: Any) -> Any:
        made = inner(*given)
        return walk.map_graph(
            made,
            lambda node, src: src[0] if node.op is ops.BARRIER and src[0].op is ops.END else None,
        )

    pipeline.lower_groups = lowered
    _group_rows()


@bug
def slot_used_twice() -> None:
    """All reductions of a work-group have their partials in the same local memory, without a barrier between."""
    module("codegen.group").itertools = types.SimpleNamespace(count=itertools.repeat)
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
    memory = module("schedule.memory")
    inner = memory.lifetimes
    memory.lifetimes = lambda items: {
        slot: (first, last - 1 if last > first else last) for slot, (first, last) in inner(items).items()
    }


@bug
def read_after_write() -> None:
    """An update is fused with what it reads, though it overwrites that."""
    order = module("schedule.order")
    inner = order.ItemBuilder._first_mode
    order.ItemBuilder._first_mode = lambda self, node: "direct" if inner(self, node) == "staged" else inner(self, node)


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

    driver.prepare, driver.copy_out, driver.synchronize = Deferred, read, flush
    buffer.transfer = launches.transfer = transfer


# ---------------------------------------------------------------- jit, the disk cache, gradients


@bug
def stale_jit_constant() -> None:
    """A number that is given to a jitted function is no part of what a replay assumes."""
    arguments = module("engine.jit.arguments")
    inner = arguments.flatten
    arguments.flatten = lambda value, *rest: (float, 0.0, 1.0) if isinstance(value, float) else inner(value, *rest)


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

    stored.nodes_text = schedules.nodes_text = text


@bug
def wrong_gradient_rule() -> None:
    """The gradient of a square root is twice as large."""
    ops = module("graph.ops").Ops
    inner = ops.SQRT.gradient
    ops.SQRT.gradient = lambda m, g, y, *sources: tuple(
        m.multiply(made, m.number(g, 2)) for made in inner(m, g, y, *sources)
    )


# ---------------------------------------------------------------- the backend


@bug
def wrong_instruction() -> None:
    """The CPU compares floats with `less or equal` for `less`."""
    instructions, ops = module("backends.cpu.rendering.instructions"), module("graph.ops").Ops
    instructions._COMPARE[ops.CMPLT] = ("fcmp ole", "icmp sle", "icmp ule")


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

    instructions.constant = constant
    for name in ("values", "emitter", "renderer", "elementwise", "loads", "shuffles", "dot_products", "checks"):
        found = module(f"backends.cpu.rendering.{name}")
        if hasattr(found, "constant"):
            found.constant = constant


@bug
def lost_part_of_a_sum() -> None:
    """A sum over several devices leaves out the last of them."""
    shard = module("schedule.shard")
    inner = shard.all_reduce
    shard.all_reduce = lambda op, partials, devices: inner(op, partials[:-1] or partials, devices)
