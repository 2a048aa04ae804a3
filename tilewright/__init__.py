"""Tilewright: a tensor library that compiles. The public names, sorted, nothing else.
`jit` needs the whole compiler, and few need `fft`, `linalg` and `nn`: they are imported when first asked for, so that
importing the package stays light."""

import importlib
from typing import TYPE_CHECKING, Any

import tilewright.engine.devices as _devices  # noqa: F401  (enters the backends)
from tilewright.base.config import Context
from tilewright.base.dtype import DType, dtypes
from tilewright.base.errors import TilewrightError
from tilewright.base.events import GlobalCounters
from tilewright.base.version import __version__
from tilewright.graph.ops import AddrSpace, AxisType, Ops
from tilewright.graph.records import KernelInfo, Opt, OptOps
from tilewright.graph.uop import UOp
from tilewright.graph.variable import Variable
from tilewright.runtime.device import Device
from tilewright.tensor.tensor import Tensor

if TYPE_CHECKING:
    from tilewright import fft, linalg, nn
    from tilewright.engine.jit.jit import jit

__all__ = [
    "AddrSpace",
    "AxisType",
    "Context",
    "DType",
    "Device",
    "GlobalCounters",
    "KernelInfo",
    "Ops",
    "Opt",
    "OptOps",
    "Tensor",
    "TilewrightError",
    "UOp",
    "Variable",
    "__version__",
    "dtypes",
    "fft",
    "jit",
    "linalg",
    "nn",
]


def __dir__() -> list[str]:
    """The public names, with those that are imported on demand."""
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    if name == "jit":
        from tilewright.engine.jit.jit import jit

        return jit
    if name in ("fft", "linalg", "nn"):
        return importlib.import_module(f"tilewright.{name}")
    raise AttributeError(f"module 'tilewright' has no attribute {name!r}")
