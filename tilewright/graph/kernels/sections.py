"""Several equal kernels in one launch. In: a kernel and the number of its runs, each on separate buffers. Out: one
kernel with the stores of all runs, which are its sections, in order.

    one:    p0[i] = p1[i] * 2                     i in 768
    three:  p0[i] = p1[i] * 2
            p2[i] = p3[i] * 2
            p4[i] = p5[i] * 2

For verification and the interpreter this is a kernel with several stores. `KernelInfo.sections` states that the
sections are equal: a target that supports sections (`Target.max_sections`) compiles the first one, and a launch passes
that program the buffers of each. So the code does not grow with the number of sections, and each gives the same bits as
alone."""

from __future__ import annotations

from tilewright.base.records import replace
from tilewright.graph.ops import Ops, ParamArg
from tilewright.graph.records import KernelInfo
from tilewright.graph.uop import UOp
from tilewright.graph.walk import substitute, toposort


def sections_of(sink: UOp) -> int:
    return sink.arg.sections if isinstance(sink.arg, KernelInfo) else 1


def join_sections(section: UOp, count: int) -> UOp:
    """The kernel with `count` sections equal to the given one."""
    params = [node for node in toposort(section) if node.op is Ops.PARAM]
    buffers = 1 + max(param.arg.slot for param in params)
    stores = list(section.src)
    for number in range(1, count):
        moved = {
            param: param.replace(arg=ParamArg(param.arg.slot + number * buffers, param.arg.size, param.arg.device))
            for param in params
        }
        stores += substitute(section, moved).src
    info = section.arg
    joined = replace(info, name=f"{info.name}_x{count}", sections=count, section_buffers=buffers)
    return section.replace(src=tuple(stores), arg=joined)


def first_section(sink: UOp) -> UOp:
    """The first section as a kernel; its KernelInfo keeps the number of sections."""
    return sink.replace(src=sink.src[: len(sink.src) // sections_of(sink)])


def check_sections(sink: UOp) -> str | None:
    """None, or the reason why the sections of a kernel are malformed."""
    count = sections_of(sink)
    if count == 1:
        return None
    if count < 1 or len(sink.src) % count or any(store.op is not Ops.STORE for store in sink.src):
        return f"{len(sink.src)} stores do not divide into {count} equal sections"
    section = first_section(sink)
    if join_sections(section, count).src != sink.src:
        return "the sections differ in more than their buffers"
    return None
