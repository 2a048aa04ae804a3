"""The driver API. In: the name of a CUDA driver function and its arguments. Out: its result, or an error with the
driver's message. cuda-bindings makes the calls where it is installed; otherwise ctypes does, on the driver that the
system has."""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from tilewright.runtime.device import Unavailable

OUT_OF_MEMORY = 2

_int, _uint, _size, _handle = ctypes.c_int, ctypes.c_uint, ctypes.c_size_t, ctypes.c_void_p
_address = ctypes.c_uint64

# Name -> (symbol where it differs, results through pointers, the other arguments). The pointers come first.
SIGNATURES: dict[str, tuple[str, tuple[Any, ...], tuple[Any, ...]]] = {
    "cuInit": ("", (), (_uint,)),
    "cuDriverGetVersion": ("", (_int,), ()),
    "cuDeviceGetCount": ("", (_int,), ()),
    "cuDeviceGet": ("", (_int,), (_int,)),
    "cuDeviceGetName": ("", (ctypes.c_char * 128,), (_int, _int)),
    "cuDeviceGetAttribute": ("", (_int,), (_int, _int)),
    "cuDevicePrimaryCtxRetain": ("", (_handle,), (_int,)),
    "cuCtxSetCurrent": ("", (), (_handle,)),
    "cuMemGetInfo": ("cuMemGetInfo_v2", (_size, _size), ()),
    "cuMemAlloc": ("cuMemAlloc_v2", (_address,), (_size,)),
    "cuMemFree": ("cuMemFree_v2", (), (_address,)),
    "cuMemHostAlloc": ("", (_handle,), (_size, _uint)),
    "cuMemcpyHtoDAsync": ("cuMemcpyHtoDAsync_v2", (), (_address, _handle, _size, _handle)),
    "cuMemcpyDtoHAsync": ("cuMemcpyDtoHAsync_v2", (), (_handle, _address, _size, _handle)),
    "cuMemcpyDtoDAsync": ("cuMemcpyDtoDAsync_v2", (), (_address, _address, _size, _handle)),
    "cuStreamCreate": ("", (_handle,), (_uint,)),
    "cuStreamSynchronize": ("", (), (_handle,)),
    "cuStreamWaitEvent": ("", (), (_handle, _handle, _uint)),
    "cuEventCreate": ("", (_handle,), (_uint,)),
    "cuEventRecord": ("", (), (_handle, _handle)),
    "cuEventSynchronize": ("", (), (_handle,)),
    "cuEventElapsedTime": ("cuEventElapsedTime_v2", (ctypes.c_float,), (_handle, _handle)),
    "cuModuleLoadData": ("", (_handle,), (ctypes.c_char_p,)),
    "cuModuleGetFunction": ("", (_handle,), (_handle, ctypes.c_char_p)),
    "cuModuleUnload": ("", (), (_handle,)),
    "cuFuncSetAttribute": ("", (), (_handle, _int, _int)),
    "cuFuncGetAttribute": ("", (_int,), (_int, _handle)),
    "cuLaunchKernelEx": ("", (), (_handle, _handle, _handle, _handle)),
    "cuGraphCreate": ("", (_handle,), (_uint,)),
    "cuGraphAddKernelNode": ("cuGraphAddKernelNode_v2", (_handle,), (_handle, _handle, _size, _handle)),
    "cuGraphInstantiate": ("cuGraphInstantiateWithFlags", (_handle,), (_handle, ctypes.c_uint64)),
    "cuGraphExecKernelNodeSetParams": ("cuGraphExecKernelNodeSetParams_v2", (), (_handle, _handle, _handle)),
    "cuGraphLaunch": ("", (), (_handle, _handle)),
    "cuGraphExecDestroy": ("", (), (_handle,)),
    "cuGraphDestroy": ("", (), (_handle,)),
    "cuGetErrorName": ("", (ctypes.c_char_p,), (_int,)),
    "cuGetErrorString": ("", (ctypes.c_char_p,), (_int,)),
}
# Functions whose pointers to results are their last arguments.
RESULTS_LAST = frozenset({"cuGetErrorName", "cuGetErrorString"})
# Arguments that cuda-bindings takes as members of an enumeration: name -> (position, enumeration).
ENUMERATIONS = {
    "cuDeviceGetAttribute": (0, "CUdevice_attribute"),
    "cuFuncSetAttribute": (1, "CUfunction_attribute"),
    "cuFuncGetAttribute": (0, "CUfunction_attribute"),
    "cuGetErrorName": (0, "CUresult"),
    "cuGetErrorString": (0, "CUresult"),
}


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig: the shape and the stream of one launch."""

    _fields_ = (
        ("grid", _uint * 3),
        ("block", _uint * 3),
        ("shared_bytes", _uint),
        ("stream", _handle),
        ("attributes", _handle),
        ("attribute_count", _uint),
    )


class KernelNodeParams(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2: one launch of a graph."""

    _fields_ = (
        ("function", _handle),
        ("grid", _uint * 3),
        ("block", _uint * 3),
        ("shared_bytes", _uint),
        ("arguments", _handle),
        ("extra", _handle),
        ("kernel", _handle),
        ("context", _handle),
    )


class CudaError(RuntimeError):
    """A driver function failed; `code` is its CUresult."""

    def __init__(self, function: str, code: int, text: str) -> None:
        super().__init__(f"{function}: {text} ({code})")
        self.code = code


class Library:
    """`call(name, ...)` is a driver function with its status checked; `raw(name)` is the function itself, which gives
    `(status, *results)`; `native(name)` takes numbers alone and gives the status, for calls that every launch makes."""

    def __init__(self, raw: Callable[[str], Callable[..., Any]], source: str) -> None:
        self.raw = raw
        self.source = source

    def call(self, name: str, *arguments: Any) -> Any:
        status, *results = self.raw(name)(*arguments)
        if int(status):
            self.fail(name, int(status))
        return results[0] if len(results) == 1 else results

    def native(self, name: str) -> Callable[..., int]:
        """A function without results, called in the driver without a layer between: cuda-bindings makes an object of
        each argument, which takes as long as the launch."""
        function: Callable[..., int] = native_function(_system_driver(), name)
        return function

    def fail(self, name: str, code: int) -> None:
        words = []
        for part in ("cuGetErrorName", "cuGetErrorString"):
            status, *text = self.raw(part)(code)
            words.append(text[0].decode() if not int(status) and text[0] else "unknown error")
        raise CudaError(name, code, ": ".join(words))

    def add_kernel_node(self, graph: Any, previous: Sequence[Any], params: KernelNodeParams) -> Any:
        """A launch of a graph, after those of the nodes `previous`."""
        needed = (_handle * max(len(previous), 1))(*previous)
        address = ctypes.addressof(needed)
        return self.call("cuGraphAddKernelNode", graph, address, len(previous), ctypes.addressof(params))

    def node_params(self, params: KernelNodeParams) -> Any:
        """The launch of a graph as an argument of `cuGraphExecKernelNodeSetParams`."""
        return ctypes.addressof(params)


class _Bindings(Library):
    def __init__(self, module: Any) -> None:
        self.module = module
        super().__init__(functools.cache(self._function), "cuda-bindings")

    def _function(self, name: str) -> Callable[..., Any]:
        function: Callable[..., Any] = getattr(self.module, name)
        if name not in ENUMERATIONS:
            return function
        position, enumeration = ENUMERATIONS[name]
        member = getattr(self.module, enumeration)
        return lambda *given: function(*given[:position], member(given[position]), *given[position + 1 :])

    def add_kernel_node(self, graph: Any, previous: Sequence[Any], params: KernelNodeParams) -> Any:
        return self.call("cuGraphAddKernelNode", graph, list(previous), len(previous), self.node_params(params))

    def node_params(self, params: KernelNodeParams) -> Any:
        return self.module.CUDA_KERNEL_NODE_PARAMS(_ptr=ctypes.addressof(params))


def native_function(library: Any, name: str) -> Any:
    symbol, results, arguments = SIGNATURES[name]
    # Older drivers do not have the latest version of a function.
    function = getattr(library, symbol, None) or getattr(library, name)
    pointers = [ctypes.c_void_p] * len(results)
    function.restype = _int
    function.argtypes = [*arguments, *pointers] if name in RESULTS_LAST else [*pointers, *arguments]
    return function


def system_function(library: Any, name: str) -> Callable[..., Any]:
    function, results = native_function(library, name), SIGNATURES[name][1]
    is_last = name in RESULTS_LAST

    def call(*given: Any) -> tuple[Any, ...]:
        found = [kind() for kind in results]
        addresses = [ctypes.addressof(result) for result in found]
        status = function(*given, *addresses) if is_last else function(*addresses, *given)
        return (status, *(result.value for result in found))

    return call


@functools.cache
def _system_driver() -> Any:
    """The library that the system has; cuda-bindings calls the same one."""
    names = ("nvcuda.dll",) if sys.platform == "win32" else ("libcuda.so.1", "libcuda.so")
    for name in (*names, ctypes.util.find_library("cuda")):
        try:
            library = ctypes.CDLL(name) if name else None
        except OSError:
            continue
        if library is not None:
            return library
    raise _no_device("the NVIDIA driver (libcuda) is not on this system")


def _system_library() -> Library:
    library = _system_driver()
    return Library(functools.cache(functools.partial(system_function, library)), os.path.basename(library._name))


@functools.cache
def driver_library() -> Library:
    """The driver, initialised. Unavailable says why there is none."""
    try:
        from cuda.bindings import driver
    except ImportError:
        library = _system_library()
    else:
        library = _Bindings(driver)
    try:
        library.call("cuInit", 0)
    except CudaError as error:
        raise _no_device(str(error)) from error
    except Exception as error:
        # cuda-bindings raises its own error for a missing driver; its class has moved between versions.
        if not type(error).__module__.startswith("cuda."):
            raise
        raise _no_device("the NVIDIA driver (libcuda) is not on this system") from error
    return library


def _no_device(reason: str) -> Unavailable:
    return Unavailable(reason, "run on a machine with an NVIDIA card and its driver")
