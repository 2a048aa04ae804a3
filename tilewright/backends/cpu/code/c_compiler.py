"""The system's C compiler. In: C text. Out: the bytes of an object, assembly text, or why there is none.
Replaces `llvm` when CPU_COMPILER names a compiler; the object is loaded by the same `llvm.load_object`."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import tempfile

from tilewright.backends.cpu.host import system
from tilewright.base.errors import CompileError, DeviceError

# Gives up what C guarantees beyond the meaning of ops (errno, unwinding, strict aliasing), but not IEEE semantics.
FLAGS = (
    "-std=c11",
    "-O2",
    "-fPIC",
    "-ftree-vectorize",
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-fno-strict-aliasing",
    "-fno-asynchronous-unwind-tables",
    "-fno-stack-protector",
    "-fno-ident",
    "-w",
)


@functools.cache
def _find(compiler: str) -> str:
    path = shutil.which(compiler)
    if path is None:
        raise DeviceError(
            "device",
            f"CPU_COMPILER={compiler}, and no program of that name is on the PATH",
            f"install {compiler}, or leave CPU_COMPILER at 'llvm', which needs no compiler",
        )
    return path


def _flags(arch: str) -> tuple[str, ...]:
    cpu = arch or "native"
    return FLAGS + ((f"-mcpu={cpu}",) if system.machine() == "aarch64" else (f"-march={cpu}", "-fcf-protection=none"))


@functools.cache
def toolchain(compiler: str, arch: str = "") -> str:
    """Names the compiler, its version, its flags and the processor; goes into a cache key."""
    shown = subprocess.run([_find(compiler), "--version"], capture_output=True, text=True, check=True).stdout
    return f"{shown.splitlines()[0]} {' '.join(_flags(arch))} cpu {system.cpu_identity()}"


def compile_c(compiler: str, source: str, arch: str = "") -> bytes:
    return _run(compiler, source, arch, "-c")


def assembly(compiler: str, source: str, arch: str = "") -> str:
    return _run(compiler, source, arch, "-S").decode()


def _run(compiler: str, source: str, arch: str, form: str) -> bytes:
    with tempfile.TemporaryDirectory(prefix="tilewright-cc-") as folder:
        path = os.path.join(folder, "kernel.out")
        command = [_find(compiler), *_flags(arch), form, "-x", "c", "-", "-o", path]
        finished = subprocess.run(command, input=source, capture_output=True, text=True, check=False)
        if finished.returncode:
            raise CompileError(f"{compiler} refused the text of a kernel: {finished.stderr.strip()}", source=source)
        with open(path, "rb") as file:
            return file.read()
