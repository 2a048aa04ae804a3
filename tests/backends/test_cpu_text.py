"""Golden LLVM IR: what the CPU's renderer writes for the kernels that every renderer is shown with."""

from __future__ import annotations

import pytest

from tests.golden.texts import CPU, EVERYWHERE, WITH_THREADS, check_golden, program_of
from tilewright.backends.cpu.rendering.renderer import render


@pytest.mark.parametrize("name", EVERYWHERE | WITH_THREADS)
def test_llvm_text(name: str, request: pytest.FixtureRequest) -> None:
    build_output, opts = (EVERYWHERE | WITH_THREADS)[name]
    check_golden(f"{name}.ll", render(program_of(name, build_output(), opts, CPU), "kernel"), request)
