"""What a call runs. In: a function and its arguments. Out: its result, the Python code that ran on the user's behalf,
and the first call whose result could differ next time although nothing that jit can compare has changed.

A native profiler records the call graph, so only code that ran counts: a clock on a branch that was not taken does not
matter. Code of the package is trusted: what it calls does not count, unless it is user code. Functions of the standard
library and of NumPy count where user code called them, directly or not."""

from __future__ import annotations

import _lsprof
import functools
import gc
import os
import re
import sys
import types
from collections.abc import Callable, Iterable
from typing import Any

from tilewright.base.location import PACKAGE_FOLDER
from tilewright.base.records import NamedTuple
from tilewright.engine.jit import known_python

_LIBRARY_FOLDER = os.path.dirname(os.__file__) + os.sep
_INSTALLED = (os.sep + "site-packages" + os.sep, os.sep + "dist-packages" + os.sep)
# What the package itself calls. Other installed packages are users of it, as a library of models is.
_DEPENDENCIES = ("numpy", "ml_dtypes", "rich", "typer", "platformdirs")
# What drivers are made of: the package calls them, also from destructors, which can run during any call.
_DRIVERS = ("llvmlite", "pyopencl", "pytools", "cuda", "wgpu", "cffi", "objc")

MAX_FILES = 1 << 12  # whose origin is remembered
MAX_CODES = 1 << 15  # whose names are remembered: more than one call can meet, or each would read all of them again

_GRADIENTS = frozenset(["backward", "grad", "gradient", "requires_grad", "requires_grad_", "zero_grad"])
_METHOD = re.compile(r"<(?:method|slot wrapper) '([^']+)' of '([^']+)' objects>")
_FUNCTION = re.compile(r"<built-in (?:method|function) (?:([\w.]+)\.)?(\w+)(?: of .*)?>")


class Observation(NamedTuple):
    """One call, as far as guards are concerned."""

    codes: frozenset[types.CodeType]  # what ran for the user: own code, and library code that it led to
    names: frozenset[str]  # the attributes, globals and constant strings that this code names
    every_name: frozenset[str]  # and those of the package's code that ran
    reads_by_name: bool  # whether attributes may be read that no code names
    sees_gradients: bool  # whether it matters which tensors require a gradient or have one
    impure: str  # the first call whose result may differ next time; '' where there is none

    def has_run(self, code: types.CodeType) -> bool:
        return code in self.codes


_UNSEEN = Observation(
    codes=frozenset(),
    names=frozenset(),
    every_name=frozenset(),
    reads_by_name=True,
    sees_gradients=True,
    impure="a profiler is active, and hides what the function reads; calls recorded before it starts are replayed",
)


@functools.lru_cache(maxsize=MAX_CODES)
def names_in(code: types.CodeType) -> tuple[str, ...]:
    """The attributes and globals that a code names, and its constant strings, which `getattr` may be given. A tuple:
    it is kept for every code that has run, most have nothing but names, and sets take several times the memory."""
    texts = [constant for constant in code.co_consts if isinstance(constant, str) and constant.isidentifier()]
    for constant in code.co_consts:
        if isinstance(constant, tuple | frozenset):
            texts += [text for text in constant if isinstance(text, str)]
    return (*code.co_names, *texts) if texts else code.co_names


def observe(call: Callable[[], Any]) -> tuple[Any, Observation]:
    """The result of the call, and what has run in it. A profiler of the user is suspended meanwhile where it can be
    resumed, and so is the collection of cycles: the finalisers and callbacks that it calls are not part of the
    function."""
    outer = sys.getprofile()
    # A native profiler that Python cannot call is not to be restored from here.
    if outer is not None and not callable(outer) and not isinstance(outer, _lsprof.Profiler):
        return call(), _UNSEEN
    collects = gc.isenabled()
    profiler = _lsprof.Profiler()
    try:
        profiler.enable(subcalls=True, builtins=True)
    except ValueError:
        # Since Python 3.12 a second native profiler is refused while one is active.
        return call(), _UNSEEN
    gc.disable()
    try:
        result = call()
    finally:
        profiler.disable()
        if collects:
            gc.enable()
        if isinstance(outer, _lsprof.Profiler):
            outer.enable()
        elif outer is not None:
            sys.setprofile(outer)
    return result, _summary(profiler.getstats(), call.__code__)


def _summary(entries: Iterable[Any], root: types.CodeType) -> Observation:
    calls: dict[types.CodeType, Iterable[Any]] = {}  # of code that may count; most is the package's
    pending: list[types.CodeType] = []
    package: list[types.CodeType] = []
    for entry in entries:
        code = entry.code
        if isinstance(code, str):
            continue
        if code is root:
            pending.extend(sub.code for sub in entry.calls or () if not isinstance(sub.code, str))
        origin = origin_of(code)
        if origin == "package":
            package.append(code)
            continue
        calls[code] = entry.calls or ()
        if origin == "user":
            pending.append(code)
    codes: set[types.CodeType] = set()
    impure, reads_by_name = "", False
    while pending:
        code = pending.pop()
        if code in codes or origin_of(code) == "package":
            continue
        codes.add(code)
        for called in [sub.code for sub in calls.get(code, ())]:
            if not isinstance(called, str):
                pending.append(called)
            elif not is_pure(called):
                impure = impure or f"it calls {_plain(called)} (in {code.co_qualname}), which may give something else"
            reads_by_name = reads_by_name or called in known_python.READ_BY_NAME
    codes.discard(root)
    names = frozenset[str]().union(*map(names_in, codes))
    reads_by_name = reads_by_name or "__dict__" in names or any(_reads_whole_objects(code) for code in package)
    sees_gradients = not _GRADIENTS.isdisjoint(names) or any(code.co_name == "backward" for code in package)
    every_name = names.union(*map(names_in, package))
    return Observation(frozenset(codes), names, every_name, reads_by_name, sees_gradients, impure)


def origin_of(code: types.CodeType) -> str:
    """'package' for what is trusted, 'library' for what counts only where user code leads to it, else 'user'."""
    file = code.co_filename
    return "library" if file == "<string>" and _is_generated(code) else _origin_of_file(file)


@functools.lru_cache(maxsize=MAX_FILES)
def _origin_of_file(file: str) -> str:
    if file.startswith((PACKAGE_FOLDER, "<frozen importlib", "<rules of ", "<__array_function__")):
        return "package"
    if file.startswith("<frozen "):
        return "library"
    for installed in _INSTALLED:
        _, found, rest = file.rpartition(installed)
        if found:
            family = rest.partition(os.sep)[0].partition(".")[0]
            if family in _DRIVERS:
                return "package"
            return "library" if family in _DEPENDENCIES else "user"
    return "library" if file.startswith(_LIBRARY_FOLDER) else "user"


def _is_generated(code: types.CodeType) -> bool:
    """Whether a code without a file is a method of a data class or of a named tuple, which the package has too; the
    other such codes are a user's, of `python -c`."""
    return code.co_name.startswith("__") or code.co_names == ("_tuple_new",)


def _reads_whole_objects(code: types.CodeType) -> bool:
    """Whether code of the package goes through all attributes of the user's objects, as `get_parameters` does."""
    return "__dict__" in code.co_consts


def is_pure(called: str) -> bool:
    """Whether a native function, in the profiler's words, gives the same for the same arguments."""
    method = _METHOD.fullmatch(called)
    if method is not None:
        name, owner = method.groups()
        if owner.startswith(known_python.IMPURE_TYPE_FAMILIES):
            return False
        return (
            owner in known_python.PURE_TYPES
            or owner.startswith(known_python.PURE_TYPE_FAMILIES)
            or name in known_python.EFFECTS
        )
    function = _FUNCTION.fullmatch(called)
    if function is None:
        return False
    module, name = function.groups()
    if module is None:
        return name in known_python.PURE_CLASS_METHODS
    if module == "builtins":
        return name not in known_python.IMPURE_BUILTINS
    if module in known_python.PURE_MODULES or f"{module}.{name}" in known_python.PURE_FUNCTIONS:
        return True
    if module.startswith(known_python.IMPURE_MODULE_FAMILIES):
        return False
    return module.startswith(known_python.PURE_MODULE_FAMILIES) and name not in known_python.IMPURE_NATIVE


def _plain(called: str) -> str:
    """`time.time` for `<built-in method time.time>`."""
    method, function = _METHOD.fullmatch(called), _FUNCTION.fullmatch(called)
    if method is not None:
        return f"{method[2]}.{method[1]}"
    return called if function is None else ".".join(part for part in function.groups() if part)
