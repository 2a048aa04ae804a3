"""A package `tinygrad` that is Tilewright, as a plugin of pytest. In: imports of `tinygrad` and what is below it. Out:
modules with our names where we have them; any other name is a stub that raises NotImplementedError where it is used, so
that a test of internals fails by itself and not with its whole file. Errors of ours count where theirs are expected."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import importlib
import importlib.abc
import importlib.machinery
import math
import os
import re
import sys
import tempfile
import types
import unittest
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import tilewright
from tilewright import Device, GlobalCounters, Ops, Tensor, UOp, Variable, dtypes, jit
from tilewright.base import dtype as our_dtypes
from tilewright.base.config import Context as OurContext
from tilewright.base.config import options
from tilewright.base.dtype import DType, cast_scalar, promote
from tilewright.base.errors import JitError, UnsupportedError, UserError
from tilewright.engine.memory.parts import held_buffer, layout_of
from tilewright.graph.build import stored_root
from tilewright.nn.state import as_buffer, gguf_load
from tilewright.runtime.buffer import buffer_of

NAME = "tinygrad"
# Options that mean something else there, or would make every test slow.
_IGNORED = ("BEAM", "CHECK", "DEBUG", "NOOPT", "SPEC")
_PLAIN = (
    "bool",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "float16",
    "float32",
    "float64",
)
_WIDENED = (dtypes.bfloat16, *dtypes.fp8s)  # NumPy has no such types there

# Tests of its compiler, drivers and tools alone.
INTERNAL = re.compile(
    r"test_(asm_gemm|autogen|callify|compile_failures|cpu|device|disk_cache|elf|encodings|gc|gpudims|graph|graph_rewrite"
    r"|hcq\w*|helpers|isel|linearizer\w*|llama_kernels|llm_\w+|memory_planner|metal\w*|method_cache|microbenchmarks"
    r"|objc|pattern_matcher|process_replay|profiler|renderer_failures|rewrite\w*|simplify_valid_idx|subbuffer"
    r"|system_pci\w*|tensor_uop\w*|tinyfs|tqdm|transcendental_helpers|uop\w*|upat\w*|validate_oob|viz|wait_loop)\.py"
)

# ---------------------------------------------------------------- what we lack


class _Refusing(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise NotImplementedError(f"alias: internals {cls.__name__}.{name}")


class Stub(metaclass=_Refusing):
    """Any name that we do not have: it can be imported, subclassed and named in a signature, and not used."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"alias: internals {cls.__name__}")


def fetch(*args: Any, **kwargs: Any) -> Any:
    raise NotImplementedError("alias: network")


class AliasModule(types.ModuleType):
    """A module whose unknown names are stubs. `tinygrad.function` is a function too."""

    __path__: list[str] = []  # noqa: RUF012 (what makes a module a package)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (Stub,), {})

    def __call__(self, function: Any = None, **kwargs: Any) -> Any:
        return call_as_it_is(function, **kwargs)


def call_as_it_is(function: Any = None, **kwargs: Any) -> Any:
    """`@function`: equal graphs are compiled once anyway."""
    return function if function is not None else lambda inner: inner


# ---------------------------------------------------------------- options


class _Number(int):
    value = 0


class _Text(str):
    @property
    def value(self) -> str:
        return str(self)


def context_variable(key: str, default: Any = 0) -> Any:
    return _Text(os.getenv(key, default)) if isinstance(default, str) else _Number(default)


@functools.cache
def getenv(key: str, default: Any = 0) -> Any:
    return type(default)(os.getenv(key) or default)


class _NoTarget:
    interface = renderer = arch = ""
    device = "CPU"


@contextlib.contextmanager
def context(**given: Any) -> Iterator[None]:
    before = dtypes.default_float, dtypes.default_int
    if "DEV" in given:
        given["DEVICE"] = given.pop("DEV")
    with contextlib.ExitStack() as stack:
        if "TRAINING" in given:
            stack.enter_context(Tensor.train(bool(given["TRAINING"])))
        for name, kind in (("DEFAULT_FLOAT", "default_float"), ("DEFAULT_INT", "default_int")):
            if name in given:
                wanted = given[name].lower() if isinstance(given[name], str) else given[name]
                setattr(dtypes, kind, our_dtypes.to_dtype(wanted))
        known = {name: value for name, value in given.items() if hasattr(options, name) and name not in _IGNORED}
        stack.enter_context(OurContext(**known))
        try:
            yield
        finally:
            dtypes.default_float, dtypes.default_int = before


class Progress:
    """A bar that shows nothing."""

    def __init__(self, values: Any = (), *args: Any, **kwargs: Any) -> None:
        self.values = range(values) if isinstance(values, int) else values

    def __iter__(self) -> Iterator[Any]:
        return iter(self.values)

    def set_description(self, *args: Any) -> None:
        """Takes the text."""

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *args: Any) -> None:
        """Ends what a timing or a pause of the collector would."""


def flattened(values: Any) -> list[Any]:
    return [leaf for value in values for leaf in flattened(value)] if isinstance(values, list | tuple) else [values]


HELPERS: dict[str, Any] = {
    "CI": True,
    "Context": context,
    "ContextVar": context_variable,
    "DEV": _NoTarget(),
    "GlobalCounters": GlobalCounters,
    "JIT": _Number(1),
    "OSX": False,
    "Path": Path,
    "T": Any,
    "Target": _NoTarget,
    "Timing": Progress,
    "WIN": False,
    "all_same": lambda values: all(value == values[0] for value in values),
    "argfix": lambda *values: values[0] if values and isinstance(values[0], tuple | list) else values,
    "colored": lambda text, *args, **kwargs: text,
    "dedup": lambda values: list(dict.fromkeys(values)),
    "disable_gc": Progress,
    "fetch": fetch,
    "flatten": lambda rows: [value for row in rows for value in row],
    "fully_flatten": flattened,
    "getenv": getenv,
    "make_tuple": lambda value, count: (value,) * count if isinstance(value, int) else tuple(value),
    "mv_address": lambda view: ctypes.addressof(ctypes.c_char.from_buffer(view)),
    "prod": math.prod,
    "round_up": lambda number, step: -(-number // step) * step,
    "temp": lambda name, **kwargs: os.path.join(tempfile.gettempdir(), f"alias_{name}"),
    "tqdm": Progress,
    "trange": Progress,
    **dict.fromkeys(("BEAM", "DEBUG", "IMAGE", "NOOPT", "WINO"), _Number(0)),
    "EMULATED_DTYPES": type("EmulatedDtypes", (_Number,), {"tolist": lambda self, *args: []})(0),
}

# ---------------------------------------------------------------- dtypes


def to_numpy_dtype(dtype: DType) -> Any:
    return np.float32 if dtype in _WIDENED else np.dtype(dtype.name).type


def to_torch_dtype(dtype: DType) -> Any:
    torch = importlib.import_module("torch")
    return torch.uint8 if dtype in dtypes.fp8s else getattr(torch, dtype.name)


class _Truncations(dict[DType, Callable[[Any], Any]]):
    def __missing__(self, dtype: DType) -> Callable[[Any], Any]:
        return lambda value: cast_scalar(value, dtype)


DTYPE: dict[str, Any] = {
    **{name: getattr(our_dtypes, name) for name in ("DType", "dtypes", "to_dtype")},
    "AddrSpace": tilewright.AddrSpace,
    "DTYPES_DICT": {name: getattr(dtypes, name) for name in (*_PLAIN, "bfloat16", "fp8e4m3", "fp8e5m2")},
    "_from_np_dtype": our_dtypes.to_dtype,
    "_from_torch_dtype": our_dtypes.to_dtype,
    "_to_np_dtype": to_numpy_dtype,
    "_to_torch_dtype": to_torch_dtype,
    "from_storage_scalar": lambda value, dtype: float(value) if dtype in _WIDENED else value,
    "least_upper_dtype": promote,
    "strong_dtype": lambda dtype: dtype,
    "truncate": _Truncations(),
}


class _NoDtype(NamedTuple):
    name: str


class _Renderer:
    has_local = has_shared = False
    tensor_cores = ()
    device = "CPU"
    target: Any = None
    code_for_op: dict[Any, Any] = {}  # noqa: RUF012 (a stand-in)

    def supported_dtypes(self) -> set[DType]:
        return set(dtypes.all)


# ---------------------------------------------------------------- what its tensors and nodes have


def variable(name: str, least: int, greatest: int, dtype: Any = None) -> Variable:
    """A variable; ours has the integer type that its bounds need."""
    return Variable(name, least, greatest)


def const(value: Any, dtype: Any = None) -> UOp:
    return Tensor.full((), value, dtype).uop


def memory_of(node: UOp) -> Any:
    """What holds a value, to be compared: None where it is not computed yet."""
    held = held_buffer(stored_root(node))
    return None if held is None else buffer_of(held) if held.op is Ops.BUFFER else held


def ggml_data_to_tensor(data: Tensor, count: int, kind: int) -> Tensor:
    """The values of blocks: ours are read from a file, which has a header."""
    gguf = importlib.import_module("gguf")
    with tempfile.TemporaryDirectory() as folder:
        writer = gguf.GGUFWriter(Path(folder) / "blocks.gguf", "blocks")
        writer.add_tensor("blocks", data.flatten().numpy(), raw_dtype=gguf.GGMLQuantizationType(kind))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return gguf_load(Path(folder) / "blocks.gguf")[1]["blocks"].flatten()[:count].realize()


_first_contiguous = Tensor.contiguous
_first_range = UOp.range
_first_backward = Tensor.backward


def backward(self: Tensor, gradient: Tensor | None = None, **kwargs: Any) -> Tensor:
    """Every float tensor that a result was computed from has a gradient, where ours would have to ask for it."""
    if self.requires_grad:
        return _first_backward(self, gradient, **kwargs)
    for target in [thing for thing in gc.get_objects() if type(thing) is Tensor and hasattr(thing, "uop")]:
        if target.dtype.is_float and target is not self and target is not gradient:
            with contextlib.suppress(UnsupportedError):
                (found,) = self.gradient(target, gradient=gradient)
                target.grad = found if target.grad is None else target.grad.assign(target.grad + found)
    return self


# ---------------------------------------------------------------- the modules

_PUBLIC = {name: getattr(tilewright, name) for name in tilewright.__all__ if not name.startswith("_")}
_OURS = {
    "nn": "nn",
    "nn.state": "nn.state",
    "nn.optim": "nn.optim",
    "nn.datasets": "nn.datasets",
    "llm.gguf": "nn.state",
}
MODULES: dict[str, dict[str, Any]] = {
    "": {
        **_PUBLIC,
        "TinyJit": jit,
        "Variable": variable,
        "Context": context,
        "function": call_as_it_is,
        "getenv": getenv,
        "fetch": fetch,
    },
    "device": {"Device": Device, "is_dtype_supported": lambda dtype, device=None: True},
    "dtype": DTYPE,
    "codegen.opt": {"Opt": tilewright.Opt, "OptOps": tilewright.OptOps},
    "engine.jit": {"TinyJit": jit, "JitError": JitError, "graph_class": lambda *args: None},
    "function": {"function": call_as_it_is},
    "helpers": HELPERS,
    "llm.gguf": {"ggml_data_to_tensor": ggml_data_to_tensor},
    "runtime.ops_python": {"from_storage_scalar": DTYPE["from_storage_scalar"]},
    "tensor": {"Tensor": Tensor, "_to_np_dtype": to_numpy_dtype, "_from_np_dtype": our_dtypes.to_dtype},
    "uop": {"Ops": tilewright.Ops},
    "uop.ops": {**{name: _PUBLIC[name] for name in ("AxisType", "KernelInfo", "Ops", "UOp")}, "Variable": variable},
}


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name.partition(".")[0] != NAME:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: Any) -> Any:
        return AliasModule(spec.name)

    def exec_module(self, module: Any) -> None:
        below = module.__name__.removeprefix(NAME).removeprefix(".")
        if below in _OURS:
            ours = importlib.import_module(f"tilewright.{_OURS[below]}")
            for inner in _OURS:
                if inner.startswith(f"{below}."):
                    setattr(module, inner.removeprefix(f"{below}."), importlib.import_module(f"{NAME}.{inner}"))
            module.__dict__.update({name: getattr(ours, name) for name in dir(ours) if not name.startswith("_")})
        module.__dict__.update(MODULES.get(below, {}))


def also_ours(asserts: Callable[..., Any], takes_text: bool) -> Callable[..., Any]:
    """`assertRaises`, which takes an error of ours for any of theirs, whatever its text."""

    def wrapped(self: Any, expected: Any, *args: Any, **kwargs: Any) -> Any:
        kinds = tuple(expected) if isinstance(expected, tuple | list) else (expected,)
        return asserts(self, (*kinds, UserError), *(args[1:] if takes_text else args), **kwargs)

    return wrapped


def realize_scheduled(tensors: Any, *args: Any, **kwargs: Any) -> tuple[Any, dict[str, int]]:
    """`check_schedule`: how many kernels its scheduler makes is internal, the values that follow are not."""
    Tensor.realize(*(tensors if isinstance(tensors, list) else [tensors]))
    return Stub, {}


def is_param_(tensor: Tensor, value: bool = True) -> Tensor:
    return tensor if value else as_buffer(tensor)


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    return True if INTERNAL.fullmatch(collection_path.name) else None


def pytest_configure() -> None:
    """Installs the alias before any test is imported."""
    sys.meta_path.insert(0, Finder())
    raises = unittest.TestCase.assertRaises
    names: tuple[tuple[Any, str, Any], ...] = (
        (unittest.TestCase, "assertRaises", also_ours(raises, takes_text=False)),
        (unittest.TestCase, "assertRaisesRegex", also_ours(raises, takes_text=True)),
        (Tensor, "is_param_", is_param_),
        (Tensor, "backward", backward),
        (Tensor, "contiguous", lambda tensor, arg=None, **kwargs: _first_contiguous(tensor, **kwargs)),
        (UOp, "simplify", lambda node: node),
        (UOp, "range", staticmethod(lambda *args, dtype=None, **kwargs: _first_range(*args, **kwargs))),
        (UOp, "variable", staticmethod(variable)),
        (UOp, "const", staticmethod(const)),
        (UOp, "axis", property(lambda node: layout_of(node)[0])),
        (UOp, "base", property(stored_root)),
        (UOp, "is_realized", property(lambda node: memory_of(node) is not None)),
        (UOp, "realized", property(memory_of)),
        (UOp, "buffer", property(memory_of)),
        (type(Device["CPU"]), "graph", None),
        (type(Device["CPU"]), "renderer", _Renderer()),
        (dtypes, "fp8_ocp", dtypes.fp8s),
        (dtypes, "fp8_fnuz", ()),
        (dtypes, "weaks", ()),
        (dtypes, "finfo", lambda dtype: (dtype.exponent_bits, dtype.mantissa_bits)),
        *((dtypes, name, _NoDtype(name)) for name in ("fp8e4m3fnuz", "fp8e5m2fnuz")),
    )
    for owner, name, value in names:
        setattr(owner, name, value)
    if Path("test/helpers.py").is_file():
        helpers: Any = importlib.import_module("test.helpers")  # of the checkout
        helpers.check_schedule = realize_scheduled
        helpers.assert_jit_cache_len = helpers.assert_kernel_count = lambda *args, **kwargs: None
