"""What the stages may know of the PYTHON device. In: nothing. Out: its `Target`.
The emulator computes every scalar op itself, so a program for this target is the reference without decompositions."""

from __future__ import annotations

from tilewright.base.target import ATOMIC_DTYPES, FLOAT_ATOMIC_DTYPES, Target
from tilewright.graph.ops import ALL_OPS

LOCAL_BYTES = 48 * 1024
GROUP_SIZE = 1024


def python_target() -> Target:
    """The target of the emulator: work-groups and local memory as a GPU has them, every dtype and scalar op native."""
    return Target(
        name="PYTHON",
        vector_bytes=16,
        has_local=True,
        start_alignment=1,
        is_reference=True,
        max_local_bytes=LOCAL_BYTES,
        max_group_size=GROUP_SIZE,
        atomics=ATOMIC_DTYPES,
        float_atomics=FLOAT_ATOMIC_DTYPES,
        native_ops=frozenset(op.name for op in ALL_OPS if op.is_elementwise) | {"SATURATING_CAST"},
    )
