"""VERIFY=1. In: a compiled kernel. Out: nothing, or an error. The optimised kernel on its device and the unoptimised
one on the emulator run on the same random inputs and must agree. The error has the first element that differs, and the
path of a file that replays the kernel."""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.base.dtype import DType
from tilewright.base.errors import KernelDifferenceError
from tilewright.base.records import replace
from tilewright.codegen.pipeline import lower, program_params
from tilewright.engine.compilation.difference import find_difference
from tilewright.graph.ops import Ops
from tilewright.graph.records import KernelInfo, Param, Program
from tilewright.graph.sizes import fixed_graph, variable_values
from tilewright.graph.text.repro import Repro, carried_options, inputs_of, save_repro
from tilewright.graph.uop import UOp, memory_of
from tilewright.graph.walk import toposort
from tilewright.kernel.optimise import optimise
from tilewright.runtime.cache import state_folder
from tilewright.runtime.device import Address, Driver, open_driver

REFERENCE_DEVICE = "PYTHON"
# The values of a kernel's variables in the compared runs: 0 is the least, 1 the greatest.
_PARTS = (1.0, 0.3, 0.0)


def verify_optimised(ast: UOp, program: Program, optimised: UOp, source: str, handle: Any, device: str) -> None:
    """`handle` is the kernel `ast` as its device has loaded it; `optimised`, `program` and `source` are what it was
    made from."""
    import numpy as np

    from tilewright.graph.interpreter.numpy_math import numpy_dtype

    seed = zlib.crc32(source.encode())
    # The buffers of the kernel as it was scheduled: each of the two programs may have simplified some of them away.
    params = program_params(ast)
    inputs = [random_bytes(param, np.random.default_rng(seed + param.slot)) for param in params]
    rows: list[tuple[Param, bytearray, bytearray, dict[str, int]]] = []
    for part in _PARTS if variable_values([ast]) else (1.0,):
        values = variable_values([ast], part)
        found = run_on_inputs(open_driver(device), handle, inputs, values)
        expected = run_unoptimised(ast, inputs, values)
        rows += [(*row, values) for row in zip(params, found, expected, strict=True)]
    for param, ours, theirs, values in rows:
        if not param.is_written or param.holds_checks:
            continue
        got, want = (np.frombuffer(data, dtype=numpy_dtype(param.dtype)) for data in (ours, theirs))
        difference = find_difference(got, want, param.dtype)
        if difference is not None:
            made = kernel_repro(ast, optimised, device, seed, str(difference), values)
            repro = save_repro(made, os.path.join(state_folder(), "repros"), program.name)
            loops = coordinates_of(fixed_graph([ast], values)[0], param.slot, difference.position)
            sizes = "".join(f", {name} = {value}" for name, value in values.items())
            raise KernelDifferenceError(
                f"the optimised kernel on {device} and the unoptimised one on the emulator differ{sizes}, first at "
                f"element {difference.position} of buffer {param.slot}{loops}: {difference.got} instead of "
                f"{difference.want} ({difference.wrong} of {difference.size} elements differ)",
                kernel=program.name,
                repro=repro,
            )


def run_unoptimised(ast: UOp, inputs: Sequence[bytes], values: Mapping[str, int]) -> list[bytearray]:
    """The contents of each buffer of a kernel after the emulator has run it without opts."""
    reference = open_driver(REFERENCE_DEVICE)
    info = ast.arg if isinstance(ast.arg, KernelInfo) else KernelInfo()
    plain = ast.replace(arg=KernelInfo(info.name, opts_to_apply=(), fills=info.fills))
    program = lower(optimise(plain, reference.target), reference.target)
    return run_on_inputs(reference, reference.load(b"", program), inputs, values)


def kernel_repro(
    ast: UOp, optimised: UOp, device: str, seed: int, note: str, values: Mapping[str, int] | None = None
) -> Repro:
    """The repro that replays the kernel with the opts it was compiled with; its variables have their greatest values
    where none are given."""
    info = ast.arg if isinstance(ast.arg, KernelInfo) else KernelInfo()
    applied = optimised.arg.applied if isinstance(optimised.arg, KernelInfo) else ()
    graph = ast.replace(arg=replace(info, applied=applied))
    target = open_driver(device).target
    facts = f"{target.name} {target.arch} {target.toolchain}"
    given = inputs_of(graph)
    known = variable_values([ast]) if values is None else values
    return Repro("kernel", graph, device, given, seed, True, carried_options(), note=note, target=facts, values=known)


def coordinates_of(ast: UOp, slot: int, position: int) -> str:
    """The iteration in which the scheduled kernel stores an element: the value of each of its loops, as words."""
    import numpy as np

    from tilewright.graph.interpreter.evaluate import evaluate

    for store in toposort(ast):
        if store.op is not Ops.STORE or memory_of(store.src[0]).arg.slot != slot:
            continue
        index = store.src[0].src[1]
        nodes = toposort(index)
        loops = [node for node in nodes if node.op is Ops.RANGE]
        if not loops or any(node.op is Ops.LOAD for node in nodes) or any(not axis.src[0].is_const for axis in loops):
            continue
        # A free RANGE is an axis of the result, in the order of first appearance.
        found = np.argwhere(np.asarray(evaluate(index)) == position)
        if len(found):
            sizes = tuple(int(axis.src[0].arg) for axis in loops)
            return f", at {tuple(int(number) for number in found[0])} of loops {sizes}"
    return ""


def with_values(driver: Driver, handle: Any, values: Mapping[str, int]) -> Any:
    """The loaded kernel with these values of its variables."""
    return driver.bind_variables(handle, values) if driver.variables_of(handle) else handle


def run_on_inputs(driver: Driver, handle: Any, inputs: Sequence[bytes], values: Mapping[str, int]) -> list[bytearray]:
    """Runs a loaded kernel on new buffers with these contents. Returns the contents of each afterwards."""
    addresses = upload(driver, inputs)
    driver.prepare([(with_values(driver, handle, values), addresses)]).run()
    found = [bytearray(len(data)) for data in inputs]
    for (memory, _), data in zip(addresses, found, strict=True):
        driver.copy_out(memory, 0, memoryview(data))
    return found


def upload(driver: Driver, inputs: Sequence[bytes]) -> list[Address]:
    """New buffers with these contents."""
    addresses = [(driver.allocate(max(len(data), 1)), 0) for data in inputs]
    for (memory, _), data in zip(addresses, inputs, strict=True):
        driver.copy_in(memory, 0, memoryview(data))
    return addresses


def random_bytes(param: Param, generator: Any) -> bytes:
    return bytes(random_array(param.dtype, param.size, generator).tobytes())


def random_array(dtype: DType, size: int, generator: Any) -> Any:
    """Small integers, or multiples of 1/8: products and sums of them are exact, in any order of summation."""
    from tilewright.graph.interpreter.numpy_math import cast_array

    if dtype.is_float:
        return cast_array(generator.integers(-16, 17, size) / 8, dtype)
    return cast_array(generator.integers(0, 2 if dtype.is_bool else 7, size), dtype)


def agrees(got: Any, want: Any, dtype: DType) -> bool:
    """Whether values are equal, or for floats as close as reordered sums are."""
    return find_difference(got, want, dtype) is None
