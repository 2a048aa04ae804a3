"""VERIFY=1. In: a compiled kernel. Out: nothing, or an error: the kernel as optimised for its device and the kernel
without any optimisation on the emulator are run on the same random inputs and must agree."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

from tilewright.base.dtype import DType
from tilewright.base.errors import InternalError
from tilewright.codegen.pipeline import lower, program_params
from tilewright.graph.records import KernelInfo, Param, Program
from tilewright.graph.uop import UOp
from tilewright.kernel.optimise import optimise
from tilewright.runtime.device import Address, Driver, open_driver

REFERENCE_DEVICE = "PYTHON"


def verify_optimised(ast: UOp, program: Program, source: str, handle: Any, device: str) -> None:
    """`handle` is the kernel `ast` as its device has loaded it, `program` and `source` what it was made from."""
    import numpy as np

    from tilewright.graph.interpreter.evaluate import numpy_dtype

    driver, reference = open_driver(device), open_driver(REFERENCE_DEVICE)
    name = program.name
    plain = ast.replace(arg=KernelInfo(name, opts_to_apply=(), fills=program.fills))
    unoptimised = reference.load(b"", lower(optimise(plain, reference.target), reference.target))
    seed = zlib.crc32(source.encode())
    # Those of the kernel as it was scheduled: each of the two programs may have simplified some of them away.
    params = program_params(ast)
    inputs = [random_bytes(param, np.random.default_rng(seed + param.slot)) for param in params]
    found, expected = run_on_inputs(driver, handle, inputs), run_on_inputs(reference, unoptimised, inputs)
    for param, ours, theirs in zip(params, found, expected, strict=True):
        if not param.is_written or param.holds_checks:
            continue
        got, want = (np.frombuffer(data, dtype=numpy_dtype(param.dtype)) for data in (ours, theirs))
        if not agrees(got, want, param.dtype):
            worst = int(np.argmax(np.asarray(got != want)))
            raise InternalError(
                f"{name}: the optimised kernel on {device} and the plain one on the emulator differ, first at element "
                f"{worst} of buffer {param.slot}: {got[worst]} against {want[worst]}"
            )


def run_on_inputs(driver: Driver, handle: Any, inputs: Sequence[bytes]) -> list[bytearray]:
    """Runs a kernel on new buffers with these contents; the contents of each afterwards."""
    addresses = upload(driver, inputs)
    driver.prepare([(handle, addresses)]).run()
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
    import numpy as np

    if not dtype.is_float:
        return bool(np.array_equal(got, want))
    tolerance = 2.0 ** -(dtype.mantissa_bits - 6)
    got, want = got.astype(np.float64), want.astype(np.float64)
    return bool(np.allclose(got, want, rtol=tolerance, atol=tolerance, equal_nan=True))
