"""Calling a list of commands from Python. In: the address of `tw_call` in the pool's machine code, a list. Out: a
Python function without arguments, like those of modules in C: a call takes a fifth of the time of one through ctypes.
Uses only the stable ABI of CPython."""

import ctypes
from array import array
from collections.abc import Callable

# %self is a Python integer: the address of the number of commands, which is followed by the commands.
CALL_IR = """
@tw_none = external global i8
declare ptr @PyLong_AsVoidPtr(ptr)
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
declare void @Py_IncRef(ptr)

define ptr @tw_call(ptr %self, ptr %unused) #0 {
  %list = call ptr @PyLong_AsVoidPtr(ptr %self)
  %count = load i64, ptr %list, align 8
  %commands = getelementptr i64, ptr %list, i64 1
  %thread = call ptr @PyEval_SaveThread()
  call void @tw_run(ptr %commands, i64 %count)
  call void @PyEval_RestoreThread(ptr %thread)
  call void @Py_IncRef(ptr @tw_none)
  ret ptr @tw_none
}
"""
_NO_ARGUMENTS = 4  # METH_NOARGS


class Method(ctypes.Structure):
    """CPython's PyMethodDef. The functions made with one read it, and must not outlive it."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


_new_function = ctypes.pythonapi.PyCFunction_NewEx
_new_function.argtypes = [ctypes.POINTER(Method), ctypes.py_object, ctypes.py_object]
_new_function.restype = ctypes.py_object


def imports() -> dict[str, int]:
    """The addresses of what `CALL_IR` refers to."""
    names = ("PyLong_AsVoidPtr", "PyEval_SaveThread", "PyEval_RestoreThread", "Py_IncRef")
    functions = {name: ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value or 0 for name in names}
    return {"tw_none": id(None), **functions}


def method_at(address: int) -> Method:
    return Method(b"run", address, _NO_ARGUMENTS, None)


def function_of(method: Method, words: "array[int]", *owners: object) -> Callable[[], None]:
    """A function that runs these words. It keeps them, the method and the owners alive, in the field that has the
    module in a function of a module."""
    made: Callable[[], None] = _new_function(method, words.buffer_info()[0], (method, words, *owners))
    return made
