"""Programs as HIP C++. In: a `Program`. Out: the text of one kernel for AMD cards. It is CUDA C except for the
spellings in this file. The texts are compared with golden ones; no AMD card has compiled or run them."""

from __future__ import annotations

from typing import ClassVar

from tilewright.base.dtype import DType, dtypes
from tilewright.base.target import ALL_DTYPES, BASIC_OPS, SMALL_FLOATS, Target
from tilewright.codegen.c_style.renderer import CStyleRenderer
from tilewright.codegen.c_style.simt import SimtLanguage
from tilewright.graph.records import Program

_NATIVE_OPS = BASIC_OPS | {"EXP2", "LOG2", "SIN"}


def hip_target(arch: str = "gfx942") -> Target:
    """The facts of an MI300X, from AMD's documents: 304 compute units, 64 KiB of local memory, warps of 64 threads."""
    return Target(
        name="HIP",
        arch=arch,
        toolchain="hiprtc",
        vector_bytes=16,
        start_alignment=16,
        cores=304,
        has_local=True,
        max_local_bytes=64 << 10,
        max_group_size=1024,
        warp_size=64,
        cache_bytes=4 << 20,
        native=ALL_DTYPES - SMALL_FLOATS,
        native_ops=_NATIVE_OPS,
        native_casts=frozenset({dtypes.float16}),
    )


class HipLanguage(SimtLanguage):
    # The compiler has float16 as a type of its own, with conversions.
    type_names: ClassVar[dict[DType, str]] = {**SimtLanguage.type_names, dtypes.float16: "_Float16"}

    def exchange(self, value: str, distance: str) -> str:
        return f"__shfl_xor({value}, {distance})"


def render(program: Program) -> str:
    return CStyleRenderer(program, HipLanguage(program)).render()
