"""LLVM's own functions, from the library that llvmlite brings. In: the text of a module. Out: its object or assembly.

llvmlite calls all of LLVM under one lock and gives the interpreter away at each call, so threads that compile wait for
one another a dozen times a kernel. Here the library is opened again, twice: functions that are over at once keep the
interpreter, and the one that generates code, nearly all of the time, leaves it to other threads. What these functions
work on (a context, its module, a target machine) belongs to one call, which is what LLVM asks of threads."""

import contextlib
import ctypes
import functools
from collections.abc import Iterator
from ctypes import c_bool, c_char_p, c_int, c_size_t, c_void_p
from typing import Any

_MESSAGE = ctypes.POINTER(c_void_p)
_QUICK: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "ContextCreate": (c_void_p, ()),
    "ContextDispose": (None, (c_void_p,)),
    "DisposeMemoryBuffer": (None, (c_void_p,)),
    "DisposeModule": (None, (c_void_p,)),
    "DisposeString": (None, (c_void_p,)),
    "GetBufferSize": (c_size_t, (c_void_p,)),
    "GetBufferStart": (c_void_p, (c_void_p,)),
    "ParseAssembly": (c_void_p, (c_void_p, c_char_p, _MESSAGE)),
    "SetDataLayout": (None, (c_void_p, c_char_p)),
    "SetTarget": (None, (c_void_p, c_char_p)),
    "VerifyModule": (c_bool, (c_void_p, _MESSAGE)),
}
_LONG: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "TargetMachineEmitToMemory": (c_void_p, (c_void_p, c_void_p, c_int, _MESSAGE)),
}


class Refused(Exception):
    """What LLVM says about a text it does not take."""


class _Functions:
    def __init__(self) -> None:
        from llvmlite.binding import ffi

        name = ffi.lib._name
        for library, table in ((ctypes.PyDLL(name), _QUICK), (ctypes.CDLL(name), _LONG)):
            for function, (result, arguments) in table.items():
                found = getattr(library, f"LLVMPY_{function}")
                found.restype, found.argtypes = result, arguments
                setattr(self, function, found)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"LLVMPY_{name} is not in the tables")

    def take(self, message: c_void_p) -> str:
        """The text that LLVM has left here, which is freed."""
        if not message.value:
            return "no reason given"
        text = ctypes.string_at(message.value).decode(errors="replace")
        self.DisposeString(message)
        return text


@functools.cache
def _functions() -> _Functions:
    return _Functions()


@contextlib.contextmanager
def _module(text: str) -> Iterator[c_void_p]:
    """The parsed and verified text. A context of its own: the global one keeps every constant and type for the life of
    the process, and belongs to no thread."""
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


def generate(text: str, machine: Any, triple: str, data_layout: str, is_object: bool) -> bytes:
    """The module as an object file, or as the text of assembly. `machine` is a target machine that nobody else uses."""
    llvm = _functions()
    with _module(text) as module:
        llvm.SetTarget(module, triple.encode())
        llvm.SetDataLayout(module, data_layout.encode())
        message = c_void_p()
        made = llvm.TargetMachineEmitToMemory(machine, module, int(is_object), ctypes.byref(message))
        if not made:
            raise Refused(llvm.take(message))
        try:
            return ctypes.string_at(llvm.GetBufferStart(made), llvm.GetBufferSize(made))
        finally:
            llvm.DisposeMemoryBuffer(made)


__all__ = ["Refused", "generate"]
