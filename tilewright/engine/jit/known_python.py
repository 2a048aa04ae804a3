"""Facts about Python for jit: which native functions are pure, which objects never change, and where the others have
their state. Whatever is not listed may change: jit then traces each call instead of replaying."""

from __future__ import annotations

import array
import contextvars
import functools
import sys
import threading
import types
import weakref
from collections import OrderedDict, defaultdict, deque, namedtuple
from typing import Any

from tilewright.engine.jit.guards import MISSING, VALUES

_HEAP_TYPE, _IMMUTABLE_TYPE = 1 << 9, 1 << 8  # Py_TPFLAGS_HEAPTYPE, Py_TPFLAGS_IMMUTABLETYPE


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# ---------------------------------------------------------------- native functions

# Modules whose functions depend on their arguments alone, or give nothing that a function could use.
PURE_MODULES = _words("""
    builtins math cmath _operator _functools itertools _collections _bisect _heapq _struct _abc _sre _json _codecs
    unicodedata binascii zlib _hashlib _md5 _sha1 _sha2 _sha256 _sha512 _sha3 _blake2 _weakref _string _stat _warnings
    _typing _datetime _decimal _contextvars _statistics _opcode copyreg
""")
PURE_MODULE_FAMILIES = ("numpy", "ml_dtypes")
IMPURE_MODULE_FAMILIES = ("numpy.random",)
# Functions of these families that read a file or a setting.
IMPURE_NATIVE = _words("fromfile _get_extobj_dict geterrobj")
IMPURE_BUILTINS = _words("input globals locals exec eval compile breakpoint __import__")
PURE_FUNCTIONS = _words("""
    sys.intern sys.exc_info sys.getrefcount sys.is_finalizing posix.fspath nt.fspath _thread.allocate_lock time.sleep
    gc.collect
""")
# Methods that are bound to a class, such as int.from_bytes; datetime.now is one as well.
PURE_CLASS_METHODS = _words("""
    from_bytes fromkeys fromhex maketrans __new__ __subclasshook__ __init_subclass__ __class_getitem__ fromisoformat
    fromordinal combine strptime from_iterable mro
""")
PURE_TYPES = _words("""
    str bytes bytearray memoryview int float complex bool list tuple dict set frozenset range slice object type property
    dict_keys dict_values dict_items mappingproxy generator BaseException Exception staticmethod classmethod method
    function array.array Struct _struct.Struct _io.StringIO _io.BytesIO _thread.lock _thread.RLock
""")
PURE_TYPE_FAMILIES = (
    *("collections.", "itertools.", "functools.", "operator.", "re.", "decimal.", "datetime.", "weakref", "numpy."),
    *("_contextvars.", "types.", "_abc.", "string.", "ml_dtypes."),
)
IMPURE_TYPE_FAMILIES = ("numpy.random.",)
# Methods that only have an effect, whatever they belong to.
EFFECTS = _words("write writelines flush close __enter__ __exit__ acquire release")
# Where user code calls one of these, an attribute may be read whose name stands nowhere in the code.
READ_BY_NAME = frozenset(
    [f"<built-in method builtins.{name}>" for name in ("getattr", "hasattr", "vars", "dir")]
    + ["<method '__reduce_ex__' of 'object' objects>"]
)

# ---------------------------------------------------------------- objects

_Named = namedtuple("_Named", "field")
CONSTANT_TYPES = (
    *(range, slice, types.BuiltinFunctionType, types.CodeType, types.GenericAlias, types.UnionType, type(Ellipsis)),
    *(type(NotImplemented), types.MethodWrapperType, types.WrapperDescriptorType, types.MethodDescriptorType),
    *(types.GetSetDescriptorType, types.MemberDescriptorType, types.ClassMethodDescriptorType, object),
    type(vars(_Named)["field"]),
)
# Modules of the standard library whose objects are immutable, or hold no state that a function reads.
CONSTANT_MODULES = _words("""
    _thread datetime decimal fractions pathlib uuid re typing zoneinfo _abc ml_dtypes _operator operator ipaddress
""")
# Parts of the package whose objects are immutable, or are not state of a function.
CONSTANT_PARTS = ("tilewright.base", "tilewright.graph", "tilewright.runtime", "tilewright.engine")
# Native types that a class may be derived from without hiding anything.
OPEN_TYPES = (
    *(object, list, tuple, dict, set, frozenset, deque, OrderedDict, defaultdict, types.SimpleNamespace),
    *(threading.local, BaseException, Exception, bool, int, float, complex, str, bytes),
)
TENSOR_FIELDS = _words("""
    uop device grad _requires_grad _is_registered _is_parameter _ancestors _memory _asked _is_buffer _is_cut
""")
# What Python itself keeps in a class.
CLASS_FIELDS = _words("""
    __module__ __doc__ __dict__ __weakref__ __qualname__ __annotations__ __slots__ __parameters__ __orig_bases__
    __abstractmethods__ _abc_impl __match_args__ __dataclass_fields__ __dataclass_params__ __firstlineno__
    __static_attributes__
""")


# ---------------------------------------------------------------- kinds and parts of objects


def is_python_class(kind: type) -> bool:
    """Whether a class statement made the class: its objects have no state in native fields."""
    if not kind.__flags__ & _HEAP_TYPE or kind.__flags__ & _IMMUTABLE_TYPE:
        return False
    return not isinstance(vars(kind).get("__new__"), types.BuiltinFunctionType)


def nature_of(value: Any) -> str:
    """Where the state of an object that is not a container can be read: a 'constant' has none, a 'hidden' one shows
    none, an 'object' has attributes; the others are named after their types."""
    kind = type(value)
    if isinstance(value, property | staticmethod | classmethod | functools.cached_property):
        return "descriptor"
    if isinstance(value, contextvars.ContextVar):
        return "context"
    if isinstance(value, weakref.ref):
        return "reference"
    if isinstance(value, threading.local):
        return "local"
    if hasattr(kind, "cache_info") and hasattr(value, "__wrapped__"):
        return "cache"
    numpy = sys.modules.get("numpy")
    if isinstance(value, bytearray | memoryview | array.array):
        return "bytes"
    if numpy is not None and isinstance(value, numpy.ndarray):
        return "array"
    if family(kind) == "numpy" and not kind.__module__.startswith("numpy.random"):
        return "constant"  # numbers, dtypes and functions
    if isinstance(value, (*VALUES, type, types.FunctionType, types.MethodType, types.ModuleType)):
        return "constant"
    is_constant = kind in CONSTANT_TYPES or family(kind) in CONSTANT_MODULES
    if is_constant or kind.__module__.startswith(CONSTANT_PARTS):
        return "constant"
    if all(base in OPEN_TYPES or is_python_class(base) for base in kind.__mro__):
        return "object"
    return "hidden"


def family(kind: type) -> str:
    return str(kind.__module__).partition(".")[0]


def wrapped_functions(member: Any) -> list[Any] | None:
    """The functions that an entry of a class is made of; None where it is data."""
    if isinstance(member, types.FunctionType):
        return [member]
    if isinstance(member, property):
        return [function for function in (member.fget, member.fset, member.fdel) if function is not None]
    if isinstance(member, staticmethod | classmethod):
        return [member.__func__]
    if isinstance(member, functools.cached_property):
        return [member.func]
    return None


def attributes_of(value: Any) -> dict[Any, Any] | None:
    if isinstance(value, threading.local):
        return vars(value)  # this thread's
    try:
        found = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return None
    return found if isinstance(found, dict) else None


def slot_of(value: Any, member: types.MemberDescriptorType) -> Any:
    try:
        return member.__get__(value)
    except AttributeError:  # nothing was put into it yet
        return MISSING
