"""NVRTC. In: CUDA C text and an architecture such as 'sm_90a'. Out: a cubin, PTX or the compiler's errors.
It needs no card. cuda-bindings makes the calls where it is installed; otherwise ctypes does, on the library found."""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
import glob
import importlib.util
import os
import sys
from collections.abc import Sequence
from typing import Any, Protocol

from tilewright.base.errors import CompileError
from tilewright.runtime.device import Unavailable

# No fast maths: the meaning of ops allows only contraction to FMA.
OPTIONS = ("--std=c++17", "--fmad=true", "--device-as-default-execution-space")


class Nvrtc(Protocol):
    """One compilation at a time: text in, (status, log, output)."""

    def version(self) -> tuple[int, int]: ...

    def compile(self, source: bytes, options: Sequence[bytes], what: str) -> tuple[int, str, bytes]:
        """`what` is CUBIN or PTX."""
        ...


class _Bindings:
    def __init__(self, module: Any) -> None:
        self.module = module

    def version(self) -> tuple[int, int]:
        _, major, minor = self.module.nvrtcVersion()
        return int(major), int(minor)

    def compile(self, source: bytes, options: Sequence[bytes], what: str) -> tuple[int, str, bytes]:
        _, program = self.module.nvrtcCreateProgram(source, b"kernel.cu", 0, [], [])
        try:
            (status,) = self.module.nvrtcCompileProgram(program, len(options), list(options))
            log = self._read(program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
            return int(status), log, b"" if int(status) else self._read(program, what)
        finally:
            self.module.nvrtcDestroyProgram(program)

    def _read(self, program: Any, what: str) -> bytes:
        _, size = getattr(self.module, f"nvrtcGet{what}Size")(program)
        data = bytearray(int(size))
        getattr(self.module, f"nvrtcGet{what}")(program, data)
        return bytes(data)


class _System:
    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library

    def version(self) -> tuple[int, int]:
        major, minor = ctypes.c_int(), ctypes.c_int()
        self.library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        return major.value, minor.value

    def compile(self, source: bytes, options: Sequence[bytes], what: str) -> tuple[int, str, bytes]:
        program = ctypes.c_void_p()
        self.library.nvrtcCreateProgram(ctypes.byref(program), source, b"kernel.cu", 0, None, None)
        try:
            array = (ctypes.c_char_p * len(options))(*options)
            status = int(self.library.nvrtcCompileProgram(program, len(options), array))
            log = self._read(program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
            return status, log, b"" if status else self._read(program, what)
        finally:
            self.library.nvrtcDestroyProgram(ctypes.byref(program))

    def _read(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        getattr(self.library, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
        data = ctypes.create_string_buffer(size.value)
        getattr(self.library, f"nvrtcGet{what}")(program, data)
        return data.raw


@functools.cache
def nvrtc() -> Nvrtc:
    """The compiler. Unavailable says that there is none."""
    found = _with_bindings()
    if found is not None:
        return found
    for path in _library_paths():
        try:
            return _System(ctypes.CDLL(path))
        except OSError:
            continue
    raise Unavailable(
        "NVRTC, the compiler of CUDA C, is not on this system", "pip install cuda-bindings nvidia-cuda-nvrtc"
    )


def _with_bindings() -> Nvrtc | None:
    """None where the bindings, or the library they look for, are not there."""
    try:
        from cuda.bindings import nvrtc as module
    except ImportError:
        return None
    found = _Bindings(module)
    try:
        found.version()
    except Exception as error:
        # Their class for a library that is not found has moved between versions.
        if not type(error).__module__.startswith("cuda."):
            raise
        return None
    return found


def _library_paths() -> list[str]:
    """Where the compiler's library may be: on the loader's path, and in the wheels that bring it."""
    names = ["nvrtc64_130_0.dll", "nvrtc64_120_0.dll"] if sys.platform == "win32" else []
    names += [f"libnvrtc.so{version}" for version in (".13", ".12", "")]
    names += [name for name in [ctypes.util.find_library("nvrtc")] if name]
    spec = importlib.util.find_spec("nvidia")
    for folder in spec.submodule_search_locations or [] if spec is not None else []:
        found = glob.glob(os.path.join(folder, "*", "*", "*nvrtc*"))
        names += [path for path in found if "builtins" not in path and "static" not in path]
    return names


def toolchain() -> str:
    major, minor = nvrtc().version()
    return f"nvrtc {major}.{minor}"


def compile_text(source: str, arch: str, what: str = "CUBIN", more: Sequence[str] = ()) -> bytes:
    """The binary of CUDA C for an architecture; for PTX of its virtual one. CompileError has the compiler's log."""
    target = arch.replace("sm_", "compute_") if what == "PTX" else arch
    options = [f"--gpu-architecture={target}", *OPTIONS, *more]
    status, log, output = nvrtc().compile(source.encode(), [option.encode() for option in options], what)
    if status:
        raise CompileError(f"NVRTC: {log.strip() or f'status {status}'}", source=source)
    return output
