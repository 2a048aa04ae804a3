"""LLVM's own functions, from the library that llvmlite brings. In: the text of a module. Out: its object or assembly.

llvmlite's own modules are not imported: that takes eight times as long as opening the library. They also call all of
LLVM under one lock and release the GIL at each call, so threads that compile would wait for one another a
dozen times a kernel. Here the library is opened twice: short functions hold the GIL, and the two that parse the text
and generate code, which take nearly all of the time, release it. The objects that they use (a context, its module, a
target machine) belong to one call, as LLVM requires of threads."""

import contextlib
import ctypes
import functools
import os
from collections.abc import Iterator
from ctypes import c_bool, c_char_p, c_int, c_size_t, c_void_p
from typing import Any

_MESSAGE = ctypes.POINTER(c_void_p)
_QUICK: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "ContextCreate": (c_void_p, ()),
    "ContextDispose": (None, (c_void_p,)),
    "CopyStringRepOfTargetData": (None, (c_void_p, _MESSAGE)),
    "CreateTargetMachine": (c_void_p, (c_void_p, *[c_char_p] * 3, c_int, *[c_char_p] * 2, c_int, c_int, c_char_p)),
    "CreateTargetMachineData": (c_void_p, (c_void_p,)),
    "DisposeMemoryBuffer": (None, (c_void_p,)),
    "DisposeModule": (None, (c_void_p,)),
    "DisposeString": (None, (c_void_p,)),
    "DisposeTargetData": (None, (c_void_p,)),
    "GetBufferSize": (c_size_t, (c_void_p,)),
    "GetBufferStart": (c_void_p, (c_void_p,)),
    "GetHostCPUFeatures": (c_int, (_MESSAGE,)),
    "GetHostCPUName": (None, (_MESSAGE,)),
    "GetProcessTriple": (None, (_MESSAGE,)),
    "GetTargetFromTriple": (c_void_p, (c_char_p, _MESSAGE)),
    "InitializeNativeAsmParser": (None, ()),
    "InitializeNativeAsmPrinter": (None, ()),
    "InitializeNativeTarget": (None, ()),
    "SetDataLayout": (None, (c_void_p, c_char_p)),
    "SetTarget": (None, (c_void_p, c_char_p)),
    "VerifyModule": (c_bool, (c_void_p, _MESSAGE)),
}
_LONG: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "ParseAssembly": (c_void_p, (c_void_p, c_char_p, _MESSAGE)),
    "TargetMachineEmitToMemory": (c_void_p, (c_void_p, c_void_p, c_int, _MESSAGE)),
}


class Refused(Exception):
    """LLVM's message about a text that it does not accept."""


def library_path() -> str:
    """The library of llvmlite, which has all of LLVM linked into it."""
    import llvmlite
    from llvmlite.utils import get_library_name

    return os.path.join(os.path.dirname(llvmlite.__file__), "binding", get_library_name())


class _Functions:
    def __init__(self) -> None:
        path = library_path()
        for library, table in ((ctypes.PyDLL(path), _QUICK), (ctypes.CDLL(path), _LONG)):
            for function, (result, arguments) in table.items():
                found = getattr(library, f"LLVMPY_{function}")
                found.restype, found.argtypes = result, arguments
                setattr(self, function, found)
        self.InitializeNativeTarget()
        self.InitializeNativeAsmPrinter()
        self.InitializeNativeAsmParser()  # without it, inline assembly in the text ends the process

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"LLVMPY_{name} is not in the tables")

    def take(self, message: c_void_p) -> str:
        """The text of a message of LLVM, which is freed."""
        if not message.value:
            return "no reason given"
        text = ctypes.string_at(message.value).decode(errors="replace")
        self.DisposeString(message)
        return text

    def text_of(self, function: str, *arguments: Any) -> str:
        """The text that a function returns through its last parameter; "" where there is none."""
        answer = c_void_p()
        getattr(self, function)(*arguments, ctypes.byref(answer))
        return self.take(answer) if answer.value else ""


@functools.cache
def _functions() -> _Functions:
    return _Functions()


# ---- the processor, and machines that make code for it ----


def host_name() -> str:
    """LLVM's name of this processor."""
    return _functions().text_of("GetHostCPUName")


def host_features() -> str:
    """LLVM's features of this processor, those that it has and those that it lacks: `+avx2,-sse4a`, by name."""
    found = _functions().text_of("GetHostCPUFeatures").split(",")
    return ",".join(sorted(filter(None, found), key=lambda feature: feature[1:]))


def new_machine(cpu: str, features: str, level: int) -> int:
    """A target machine for a processor of this machine's instruction set. It is for one thread at a time, and never
    freed."""
    llvm = _functions()
    triple = process_triple().encode()
    message = c_void_p()
    target = llvm.GetTargetFromTriple(triple, ctypes.byref(message))
    if not target:
        raise Refused(llvm.take(message))
    # The small code model: constants sit next to the code and are addressed relative to the instruction pointer.
    settings = (level, b"pic", b"default", 0, 0, b"")
    machine: int | None = llvm.CreateTargetMachine(target, triple, cpu.encode(), features.encode(), *settings)
    if not machine:
        raise Refused(f"LLVM makes no code for {cpu} of {triple.decode()}")
    return machine


def data_layout(machine: int) -> str:
    llvm = _functions()
    layout = llvm.CreateTargetMachineData(machine)
    try:
        return llvm.text_of("CopyStringRepOfTargetData", layout)
    finally:
        llvm.DisposeTargetData(layout)


def process_triple() -> str:
    """LLVM's name for code of this process: the instruction set, the system, and the form of objects."""
    return _functions().text_of("GetProcessTriple")


# ---- modules ----


@contextlib.contextmanager
def _module(text: str) -> Iterator[c_void_p]:
    """The parsed and verified text, in a new context: the global one keeps every constant and type for the life of the
    process, and is not thread-safe."""
    llvm = _functions()
    message = c_void_p()
    context = llvm.ContextCreate()
    try:
        module = llvm.ParseAssembly(context, text.encode(), ctypes.byref(message))
        if not module:
            raise Refused(f"LLVM IR parsing error\n{llvm.take(message)}")
        try:
            if llvm.VerifyModule(module, ctypes.byref(message)):
                raise Refused(llvm.take(message))
            if message.value:
                llvm.take(message)
            yield module
        finally:
            llvm.DisposeModule(module)
    finally:
        llvm.ContextDispose(context)


def generate(text: str, machine: int, triple: str, layout: str, is_object: bool) -> bytes:
    """The module as an object file, or as the text of assembly. `machine` is a target machine that no other call
    uses."""
    llvm = _functions()
    with _module(text) as module:
        llvm.SetTarget(module, triple.encode())
        llvm.SetDataLayout(module, layout.encode())
        message = c_void_p()
        made = llvm.TargetMachineEmitToMemory(machine, module, int(is_object), ctypes.byref(message))
        if not made:
            raise Refused(llvm.take(message))
        try:
            return ctypes.string_at(llvm.GetBufferStart(made), llvm.GetBufferSize(made))
        finally:
            llvm.DisposeMemoryBuffer(made)
