"""LLVM. In: the LLVM IR text of kernels, or the object bytes of an earlier compilation. Out: object bytes, assembly
text, and `LoadedCode` with addresses to call. Stands between the LLVM renderer and the CPU device. LLVM is loaded by
the first compilation; loading a cached ELF object does not need it."""

import contextlib
import functools
import os
import re
import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tilewright.backends.cpu.code import llvm_library
from tilewright.backends.cpu.code.elf import CompileFailure, LoadedCode, ObjectFile
from tilewright.backends.cpu.host import system
from tilewright.backends.cpu.host.processors import processor
from tilewright.base.forks import renewed_lock, whole

__all__ = [
    "FUNCTION_ATTRIBUTES",
    "HAS_ELF_OBJECTS",
    "CompileFailure",
    "LoadedCode",
    "assembly",
    "compile_ir",
    "compile_texts",
    "cpu_name",
    "host_has",
    "load",
    "load_object",
    "toolchain",
]

# What every `define` must carry. `nounwind` keeps unwind tables out of the object. The two widths make LLVM use 64-byte
# registers for <16 x float>: on several AVX-512 processors it splits such values into 32-byte halves by itself.
# Processors without AVX-512 ignore them.
FUNCTION_ATTRIBUTES = 'nounwind "prefer-vector-width"="512" "min-legal-vector-width"="512"'


# ---- the host, as LLVM sees it ----


@functools.cache
def _features() -> dict[str, bool]:
    return {feature[1:]: feature[0] == "+" for feature in llvm_library.host_features().split(",") if feature}


def cpu_name() -> str:
    """LLVM's name of this processor, such as `cascadelake` or `neoverse-n1`."""
    return llvm_library.host_name()


def host_has(feature: str) -> bool:
    """Whether this processor has an LLVM feature, such as `avx512vnni` or `fullfp16`."""
    return _features().get(feature, False)


@functools.cache
def toolchain(arch: str = "") -> str:
    """Names the compiler and the processor; goes into a cache key. Does not load LLVM: a warm start stays cheap.

    llvmlite links LLVM statically, so its version and the size of its library stand for the version of LLVM.
    """
    import llvmlite

    folder = os.path.join(os.path.dirname(llvmlite.__file__), "binding")
    libraries = [name for name in sorted(os.listdir(folder)) if name.endswith((".so", ".dylib", ".dll"))]
    sizes = "+".join(str(os.path.getsize(os.path.join(folder, name))) for name in libraries)
    cpu = arch or system.cpu_identity()
    return f"llvmlite {llvmlite.__version__} library {sizes} {system.machine()} {sys.platform} cpu {cpu}"


# ---- text to object ----


def _new_machine(level: int, arch: str) -> int:
    features = "" if arch else llvm_library.host_features() + processor(arch).further_features()
    return llvm_library.new_machine(arch or cpu_name(), features, level)


_LEVELS = range(3)
# Target machines that no compilation uses: each is for one at a time, because it holds the state of a compilation.
_idle_machines: dict[tuple[int, str], list[int]] = {}


@contextlib.contextmanager
def _target_machine(level: int, arch: str) -> Iterator[int]:
    idle = _idle_machines.setdefault((level, arch), [])
    try:
        machine = idle.pop()
    except IndexError:
        machine = _new_machine(level, arch)
    try:
        yield machine
    finally:
        idle.append(machine)


@functools.cache
def _target_facts(level: int, arch: str) -> tuple[str, str]:
    """The triple and the data layout."""
    with _target_machine(level, arch) as machine:
        return llvm_library.process_triple(), llvm_library.data_layout(machine)


# The first thread that needs LLVM loads it.
_first_use = renewed_lock()


def load(optimise: int = 2, arch: str = "") -> None:
    """Loads LLVM and the facts of the processor, as the first compilation of a process would."""
    with _first_use, whole():
        _target_facts(optimise, arch)


def compile_ir(text: str, optimise: int = 2, arch: str = "") -> bytes:
    """Compile a module for this processor, or the one that `arch` names, and return the object file's bytes.

    `optimise` is LLVM's code generation level. The text is vectorised and unrolled when it arrives, so no IR passes
    run: on matmul, elementwise and naive reduction kernels none of them changed the speed, instcombine and GVN added 10
    to 25 % to the time and loop rotation with GVN made the matmul slower. Common subexpressions, loop invariants and
    addresses are handled by code generation. Parsing the text takes a tenth of the time, verifying it a hundredth.
    May be called from several threads at once.
    """
    return _emit(text, optimise, arch, is_object=True)


HAS_ELF_OBJECTS = sys.platform not in ("darwin", "win32")


def compile_texts(texts: Sequence[str], own: frozenset[str], arch: str = "") -> list[bytes]:
    """The object of each text, compiled as one module, on a system with ELF objects. `own` are the names that each text
    has for itself."""
    # Not needed where every kernel is on disk, nor for a single one.
    from tilewright.backends.cpu.code.modules import join_texts, split_object

    return split_object(compile_ir(join_texts(texts, own), arch=arch), len(texts))


def assembly(text: str, optimise: int = 2, arch: str = "") -> str:
    """The assembly text that `compile_ir` would turn into an object."""
    return _emit(text, optimise, arch, is_object=False).decode()


def _emit(text: str, optimise: int, arch: str, is_object: bool) -> bytes:
    if optimise not in _LEVELS:
        raise ValueError(f"optimise is {optimise}; it must be 0, 1 or 2")
    with _first_use, whole():
        triple, layout = _target_facts(optimise, arch)
    try:
        with whole(), _target_machine(optimise, arch) as machine:
            return llvm_library.generate(text, machine, triple, layout, is_object)
    except llvm_library.Refused as error:
        raise CompileFailure(_explain(text, str(error))) from error


def _explain(text: str, message: str) -> str:
    """LLVM's message with the lines of the text around the one it names."""
    found = re.search(r":(\d+):(\d+): error:", message)
    if not found:
        return f"LLVM refused the module: {message.strip()}"
    number = int(found.group(1))
    lines = text.splitlines()
    around = range(max(1, number - 2), min(len(lines), number + 1) + 1)
    shown = "\n".join(f"{'>' if line == number else ' '} {line:5} | {lines[line - 1]}" for line in around)
    return f"LLVM could not parse the module: {message.strip()}\n{shown}"


# ---- object to addresses ----


def load_object(data: bytes, *symbols: str, imports: Mapping[str, int] | None = None) -> LoadedCode:
    """Map the object's code and return the addresses of `symbols`; `.address` is that of the first.

    References to `imports`, and then to libc and libm, are bound. The object is checked before anything is mapped:
    damaged data raises `CompileFailure`. (Damage inside the instructions needs the cache's checksum.)
    """
    if not symbols:
        raise ValueError("load_object needs the name of a symbol")
    bound = dict(imports or {})
    if data[:4] != b"\x7fELF":
        return _load_by_llvm(data, symbols, bound)
    try:
        image = ObjectFile(data)
        missing = [name for name in symbols if name not in image.defined]
        if missing:
            raise CompileFailure(f"the object defines {sorted(image.defined)} but not {missing}")
        return image.load(symbols, bound)
    except (struct.error, IndexError, ValueError, UnicodeDecodeError) as error:
        raise CompileFailure(f"the object file is damaged: {error}") from error


# ---- other object formats: LLVM's own loader ----

_load_lock = renewed_lock()
_loaded_libraries = 0


@functools.cache
def _binding() -> Any:
    """llvmlite's own modules, with the native target ready."""
    import llvmlite.binding as binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    return binding


@functools.cache
def _linker() -> Any:
    return _binding().create_lljit_compiler()


def _load_by_llvm(data: bytes, symbols: tuple[str, ...], imports: Mapping[str, int]) -> LoadedCode:
    """Load a Mach-O or COFF object through OrcJIT; the code is freed together with the tracker."""
    global _loaded_libraries
    if data[:4] not in (b"\xcf\xfa\xed\xfe", b"\x64\x86\0\0") or any(name.encode() not in data for name in symbols):
        raise CompileFailure(f"the object file is damaged, or has no symbol {symbols[0]}")
    with _load_lock, whole():
        _loaded_libraries += 1
        builder = _binding().JITLibraryBuilder().add_object_img(data).add_current_process()
        for name in symbols:
            builder.export_symbol(name)
        for name, address in imports.items():
            builder.import_symbol(name, address)
        try:
            tracker = builder.link(_linker(), f"tilewright-{_loaded_libraries}")
        except RuntimeError as error:
            raise CompileFailure(f"LLVM could not load the object: {error}") from error
    return LoadedCode({name: tracker[name] for name in symbols}, symbols[0], tracker.close)
