"""VERIFY=1. In: a compiled kernel. Out: nothing, or an error: the kernel as optimised for its device and the kernel
without any optimisation on the emulator are run on the same random inputs and must agree. The error has the first
element that differs, and the path of a file that replays the kernel."""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tilewright.base.dtype import DType
from tilewright.base.errors import KernelDifferenceError
from tilewright.codegen.pipeline import lower, program_params
from tilewright.engine.compilation.difference import find_difference
from tilewright.graph.ops import Ops
from tilewright.graph.records import KernelInfo, Param, Program
from tilewright.graph.text.repro import Repro, carried_options, inputs_of, save_repro
from tilewright.graph.uop import UOp, memory_of
from tilewright.graph.walk import toposort
from tilewright.kernel.optimise import optimise
from tilewright.runtime.cache import state_folder
from tilewright.runtime.device import Address, Driver, open_driver

REFERENCE_DEVICE = "PYTHON"
# How far from its least value each variable of a kernel is, in the runs that are compared.
_PARTS = (1.0, 0.3, 0.0)


def verify_optimised(ast: UOp, program: Program, optimised: UOp, source: str, handle: Any, device: str) -> None:
    """`handle` is the kernel `ast` as its device has loaded it; `optimised`, `program` and `source` are what it was
    made from."""
    import numpy as np

    from tilewright.graph.interpreter.evaluate import numpy_dtype

    seed = zlib.crc32(source.encode())
    # Those of the kernel as it was scheduled: each of the two programs may have simplified some of them away.
    params = program_params(ast)
    inputs = [random_bytes(param, np.random.default_rng(seed + param.slot)) for param in params]
    has_variables = any(node.op is Ops.VARIABLE for node in toposort(ast))
    rows: list[tuple[Param, bytearray, bytearray]] = []
    for part in _PARTS if has_variables else (1.0,):
        found = run_on_inputs(open_driver(device), handle, ast, inputs, part)
        rows += zip(params, found, run_unoptimised(ast, inputs, part), strict=True)
    for param, ours, theirs in rows:
        if not param.is_written or param.holds_checks:
            continue
        got, want = (np.frombuffer(data, dtype=numpy_dtype(param.dtype)) for data in (ours, theirs))
        difference = find_difference(got, want, param.dtype)
        if difference is not None:
            made = kernel_repro(ast, optimised, device, seed, str(difference))
            repro = save_repro(made, os.path.join(state_folder(), "repros"), program.name)
            loops = coordinates_of(ast, param.slot, difference.position)
            raise KernelDifferenceError(
                f"the optimised kernel on {device} and the unoptimised one on the emulator differ, first at element "
                f"{difference.position} of buffer {param.slot}{loops}: {difference.got} instead of {difference.want} "
                f"({difference.wrong} of {difference.size} elements differ)",
                kernel=program.name,
                repro=repro,
            )


def run_unoptimised(ast: UOp, inputs: Sequence[bytes], part: float = 1.0) -> list[bytearray]:
    """What each buffer of a kernel holds after the emulator has run it without opts."""
    reference = open_driver(REFERENCE_DEVICE)
    info = ast.arg if isinstance(ast.arg, KernelInfo) else KernelInfo()
    plain = ast.replace(arg=KernelInfo(info.name, opts_to_apply=(), fills=info.fills))
    program = lower(optimise(plain, reference.target), reference.target)
    return run_on_inputs(reference, reference.load(b"", program), plain, inputs, part)


def kernel_repro(ast: UOp, optimised: UOp, device: str, seed: int, note: str) -> Repro:
    """What replays the kernel with the opts it was compiled with."""
    info = ast.arg if isinstance(ast.arg, KernelInfo) else KernelInfo()
    applied = optimised.arg.applied if isinstance(optimised.arg, KernelInfo) else ()
    graph = ast.replace(arg=replace(info, applied=applied))
    target = open_driver(device).target
    facts = f"{target.name} {target.arch} {target.toolchain}"
    given = inputs_of(graph)
    return Repro("kernel", graph, device, given, seed, True, carried_options(), note=note, target=facts)


def coordinates_of(ast: UOp, slot: int, position: int) -> str:
    """Where the kernel as it was scheduled stores an element: the value of each of its loops, as words."""
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


def with_values(driver: Driver, handle: Any, ast: UOp, part: float = 1.0) -> Any:
    """The loaded kernel of `ast` with a value for each of its variables: the greatest, or that far from the least."""
    if not driver.variables_of(handle):
        return handle
    bounds = {node.arg[0]: node.arg[1:] for node in toposort(ast) if node.op is Ops.VARIABLE}
    values = {name: least + int(part * (greatest - least)) for name, (least, greatest) in bounds.items()}
    return driver.bind_variables(handle, values)


def run_on_inputs(driver: Driver, handle: Any, ast: UOp, inputs: Sequence[bytes], part: float = 1.0) -> list[bytearray]:
    """Runs the loaded kernel of `ast` on new buffers with these contents; the contents of each afterwards."""
    addresses = upload(driver, inputs)
    driver.prepare([(with_values(driver, handle, ast, part), addresses)]).run()
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
    """Modest multiples of 1/8: their products and sums are exact, so a sum may be taken in any order."""
    from tilewright.graph.interpreter.evaluate import cast_array

    if param.dtype.is_float:
        values = generator.integers(-16, 17, param.size) / 8
    else:
        values = generator.integers(0, 2 if param.dtype.is_bool else 7, param.size)
    return bytes(cast_array(values, param.dtype).tobytes())


def agrees(got: Any, want: Any, dtype: DType) -> bool:
    """Equal, or for floats as close as reordered sums can be expected to be."""
    return find_difference(got, want, dtype) is None
