"""The hardware behind WEBGPU. In: nothing. Out: an opened wgpu device and what the stages may know of it, or the reason
there is none. Facts come from the adapter's limits and features; nothing here knows a vendor."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from tilewright.base.dtype import DType, dtypes
from tilewright.base.target import Target
from tilewright.runtime.device import Unavailable

# Types that WGSL has everywhere, and those that an adapter may add. Integers narrower than a word are computed in one
# and cut to their width by the renderer; those of 64 bits, which no browser has, are pairs of words on every adapter.
ALWAYS_NATIVE = frozenset(
    {dtypes.bool, dtypes.int8, dtypes.uint8, dtypes.int16, dtypes.uint16, dtypes.int32, dtypes.uint32, dtypes.float32}
)
FEATURE_DTYPES: dict[str, frozenset[DType]] = {"shader-f16": frozenset({dtypes.float16})}
# The limits that are raised above WebGPU's guaranteed minimum to those of the adapter.
RAISED_LIMITS = (
    "max-buffer-size",
    "max-compute-invocations-per-workgroup",
    "max-compute-workgroup-size-x",
    "max-compute-workgroup-size-y",
    "max-compute-workgroup-size-z",
    "max-compute-workgroup-storage-size",
    "max-compute-workgroups-per-dimension",
    "max-storage-buffer-binding-size",
    "max-storage-buffers-per-shader-stage",
)
# EXP2, LOG2 and SIN are decomposed: WGSL allows them errors that no other device has.
NATIVE_OPS = frozenset(
    ("NEG", "SQRT", "TRUNC", "ADD", "SUB", "MUL", "FDIV", "MAX", "MIN", "AND", "OR", "XOR", "CMPLT", "CMPEQ", "CMPNE")
    + ("WHERE", "CAST", "BITCAST")
)


@functools.cache
def find_adapter() -> Any:
    """The adapter that wgpu prefers; its own variables WGPU_ADAPTER_NAME and WGPU_BACKEND_TYPE choose another."""
    try:
        import wgpu
    except ImportError as error:
        raise Unavailable("the package wgpu is not installed", "pip install 'tilewright[webgpu]'") from error
    except OSError as error:
        raise Unavailable(f"wgpu cannot load its library: {error}", "reinstall the package wgpu") from error
    try:
        adapter = wgpu.gpu.request_adapter_sync(power_preference="high-performance")
    except Exception as error:  # wgpu raises plain RuntimeErrors, and its own where a driver is broken
        raise Unavailable(f"wgpu finds no adapter: {error}", NO_ADAPTER) from error
    if adapter is None:
        raise Unavailable("wgpu finds no adapter", NO_ADAPTER)
    return adapter


NO_ADAPTER = "install a Vulkan driver (Debian's mesa-vulkan-drivers has one in software)"


def open_adapter(without: frozenset[str] = frozenset()) -> Any:
    """A wgpu device with all features of the adapter except those in `without`, as on other hardware."""
    adapter = find_adapter()
    features = [name for name in FEATURE_DTYPES if name in adapter.features and name not in without]
    limits = {name: adapter.limits[name] for name in RAISED_LIMITS if name in adapter.limits}
    try:
        return adapter.request_device_sync(required_features=features, required_limits=limits)
    except Exception as error:
        raise Unavailable(f"wgpu cannot open {adapter.info['device']}: {error}", NO_ADAPTER) from error


def webgpu_target(info: Mapping[str, Any], limits: Mapping[str, int], features: frozenset[str]) -> Target:
    """Facts of an opened device."""
    import wgpu

    native = ALWAYS_NATIVE.union(*(kinds for name, kinds in FEATURE_DTYPES.items() if name in features))
    groups = limits["max-compute-workgroups-per-dimension"]
    return Target(
        name="WEBGPU",
        arch=f"{info['backend_type']} {info['device']} {' '.join(sorted(features))}",
        toolchain=f"wgpu {wgpu.__version__} {info['description']}",
        has_local=True,
        max_local_bytes=limits["max-compute-workgroup-storage-size"],
        max_group_size=limits["max-compute-invocations-per-workgroup"],
        max_grid=(groups, groups, groups),
        max_group=(
            limits["max-compute-workgroup-size-x"],
            limits["max-compute-workgroup-size-y"],
            limits["max-compute-workgroup-size-z"],
        ),
        max_buffers=limits["max-storage-buffers-per-shader-stage"],
        native=native,
        native_ops=NATIVE_OPS,
    )
