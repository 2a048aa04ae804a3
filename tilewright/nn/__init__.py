"""Networks: layers here, and `nn.functional`, `nn.optim`, `nn.state`, `nn.datasets` beside them. A layer is a plain
object with tensors as attributes and a `__call__`; a model is any object with layers as attributes. Parameters require
gradients, running statistics do not. Names and initial values of tensors are torch's, so that weights can be exchanged
both ways."""

import importlib
from typing import TYPE_CHECKING, Any

from tilewright.nn import functions, layers, normalisation, recurrent, transformer
from tilewright.nn.functions import *  # noqa: F403
from tilewright.nn.layers import *  # noqa: F403  # noqa: F403
from tilewright.nn.normalisation import *  # noqa: F403
from tilewright.nn.recurrent import *  # noqa: F403
from tilewright.nn.transformer import *  # noqa: F403

if TYPE_CHECKING:
    import tilewright.nn.datasets as datasets
    import tilewright.nn.functional as functional
    import tilewright.nn.init as init
    import tilewright.nn.optim as optim
    import tilewright.nn.state as state
    from tilewright.nn.module import Module, Parameter

__all__ = ["Module", "Parameter", "datasets", "functional", "init", "optim", "state"]
__all__ += functions.__all__
__all__ += layers.__all__
__all__ += normalisation.__all__
__all__ += recurrent.__all__
__all__ += transformer.__all__
__all__.sort()


def __getattr__(name: str) -> Any:
    if name in ("datasets", "functional", "init", "optim", "state"):
        return importlib.import_module(f"tilewright.nn.{name}")
    if name in ("Module", "Parameter"):
        return getattr(importlib.import_module("tilewright.nn.module"), name)
    raise AttributeError(f"module 'tilewright.nn' has no attribute {name!r}")
