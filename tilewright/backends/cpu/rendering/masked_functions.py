"""Masked loads and stores as functions. In: the instruction that LLVM has for a masked access of a vector. Out: a call
that does the same.

Where a processor has no masked accesses LLVM makes a branch and a basic block of each lane, and the registers of all
other vectors are live across them: with tiles of several vectors that is most of the time of compiling a kernel. In
a function it is done once for each type of vector."""

from __future__ import annotations

import functools
from collections.abc import Callable

from tilewright.backends.cpu.code.llvm import FUNCTION_ATTRIBUTES
from tilewright.backends.cpu.host.system import machine
from tilewright.backends.cpu.rendering.emitter import Emitter
from tilewright.backends.cpu.rendering.instructions import Instructions, memory_type, of_lanes, overload
from tilewright.base.dtype import DType
from tilewright.base.records import NamedTuple

# Masked vectors of a tile, or masked loads or stores of a kernel, from which on they share a function.
MIN_VECTORS = 4
# A calling convention that keeps half of the vector registers, where there is one: the vectors of a tile that are live
# around a call need not be spilled.
_CONVENTIONS = {"aarch64": "aarch64_vector_pcs "}


def convention() -> str:
    """How functions of a kernel's own are called, as LLVM spells it."""
    return _CONVENTIONS.get(machine(), "")


def masked_call(
    emitter: Instructions, intrinsic: str, result: str, arguments: tuple[tuple[str, str], ...], is_shared: bool
) -> str:
    """A call of an intrinsic with these arguments, types and values; or of a function that calls it, which all of its
    calls share. Arguments that are numbers, or zeros, are the same in all of them."""
    if not is_shared:
        return emitter.call(intrinsic, result, *arguments)
    names = [value if _is_constant(value) else f"%given{number}" for number, (_, value) in enumerate(arguments)]
    given = [(kind, value) for (kind, value), name in zip(arguments, names, strict=True) if name.startswith("%given")]
    name = intrinsic.removeprefix("llvm.")
    if name not in emitter.declarations:
        inner = emitter.call(intrinsic, result, *((kind, n) for (kind, _), n in zip(arguments, names, strict=True)))
        parameters = ", ".join(f"{kind} {n}" for (kind, _), n in zip(arguments, names, strict=True) if n[0] == "%")
        body = f"  {inner}\n  ret void" if result == "void" else f"  %found = {inner}\n  ret {result} %found"
        header = f"define internal {convention()}{result} @{name}({parameters}) noinline {FUNCTION_ATTRIBUTES}"
        emitter.declarations[name] = f"{header} {{\n{body}\n}}"
    return emitter.call(name, result, *given, flags=convention())


class StackStore(NamedTuple):
    """A masked store of a vector by a function that reads the vector and its mask from arrays on the stack. `spills`
    fill the arrays. Where those of all vectors of a tile come before the first call, no vector is live across it.
    `call_to` is the call that stores to an address."""

    spills: tuple[str, ...]
    call_to: Callable[[str], str]


def store_from_stack(emitter: Emitter, dtype: DType, lanes: int, name: str, mask: str, number: int) -> StackStore:
    """The store of vector `number` of a tile. `%vectors` and `%lanes` are arrays for all of them."""
    kind, kept = of_lanes(memory_type(dtype), lanes), of_lanes("i8", lanes)
    function = f"masked.store.stack.{overload(dtype, lanes)}"
    if function not in emitter.declarations:
        intrinsic = f"llvm.masked.store.{overload(dtype, lanes)}.p0"
        given = (kind, "%value"), ("ptr", "%to"), ("i32", str(dtype.itemsize)), (of_lanes("i1", lanes), "%mask")
        body = (
            f"define internal void @{function}(ptr %vector, ptr %lanes, ptr %to) noinline {FUNCTION_ATTRIBUTES} {{",
            f"  %value = load {kind}, ptr %vector, align {dtype.itemsize}",
            f"  %kept = load {kept}, ptr %lanes, align 1",
            f"  %mask = icmp ne {kept} %kept, zeroinitializer",
            f"  {emitter.call(intrinsic, 'void', *given)}",
            "  ret void\n}",
        )
        emitter.declarations[function] = "\n".join(body)
    words, vector, bits = (f"%{emitter.fresh(stem)}" for stem in ("kept", "vector", "lanes"))
    spills = (
        f"{words} = zext {of_lanes('i1', lanes)} {mask} to {kept}",
        f"{vector} = getelementptr i8, ptr %vectors, i64 {number * lanes * dtype.itemsize}",
        f"{bits} = getelementptr i8, ptr %lanes, i64 {number * lanes}",
        f"store {kept} {words}, ptr {bits}, align 1",
        f"store {kind} {name}, ptr {vector}, align {dtype.itemsize}",
    )
    call = functools.partial(emitter.call, function, "void", ("ptr", vector), ("ptr", bits))
    return StackStore(spills, lambda pointer: call(("ptr", pointer)))


def _is_constant(value: str) -> bool:
    return value.isdigit() or value == "zeroinitializer"
