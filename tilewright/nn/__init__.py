"""Networks: layers here, and `nn.functional`, `nn.optim`, `nn.state`, `nn.datasets` beside them. A layer is a plain
object with tensors as attributes and a `__call__`; a model is any object with layers as attributes. Parameters require
gradients, running statistics do not. Names and initial values of tensors are torch's, so that weights can be exchanged
both ways. They are loaded when one is first asked for: a language model has layers of its own."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import tilewright.nn.datasets as datasets
    import tilewright.nn.functional as functional
    import tilewright.nn.init as init
    import tilewright.nn.optim as optim
    import tilewright.nn.state as state
    from tilewright.nn import alignment, embeddings, functions, layers, normalisation, pools, recurrent, transformer
    from tilewright.nn.alignment import *  # noqa: F403
    from tilewright.nn.embeddings import *  # noqa: F403
    from tilewright.nn.functions import *  # noqa: F403
    from tilewright.nn.layers import *  # noqa: F403
    from tilewright.nn.module import Module, Parameter
    from tilewright.nn.normalisation import *  # noqa: F403
    from tilewright.nn.pools import *  # noqa: F403
    from tilewright.nn.recurrent import *  # noqa: F403
    from tilewright.nn.transformer import *  # noqa: F403

    __all__ = ["Module", "Parameter", "datasets", "functional", "init", "optim", "state"]
    __all__ += alignment.__all__
    __all__ += embeddings.__all__
    __all__ += functions.__all__
    __all__ += layers.__all__
    __all__ += normalisation.__all__
    __all__ += pools.__all__
    __all__ += recurrent.__all__
    __all__ += transformer.__all__

_MODULES = ("datasets", "functional", "init", "optim", "state")
_LAYERS = ("alignment", "embeddings", "functions", "layers", "normalisation", "pools", "recurrent", "transformer")
_OTHERS = {"Module": "module", "Parameter": "module"}


def _load_layers() -> None:
    """Puts the layers of all files here, with `__all__`, which has them too."""
    found: dict[str, Any] = {}
    for name in _LAYERS:
        module = importlib.import_module(f"tilewright.nn.{name}")
        found |= {each: getattr(module, each) for each in module.__all__}
    globals().update(found, __all__=sorted([*found, *_MODULES, *_OTHERS]))


def __dir__() -> list[str]:
    """All names, with those that are loaded on demand."""
    return sorted({*globals(), *__getattr__("__all__")})


def __getattr__(name: str) -> Any:
    if name in _MODULES or name in _LAYERS:
        return importlib.import_module(f"tilewright.nn.{name}")
    if name in _OTHERS:
        return getattr(importlib.import_module(f"tilewright.nn.{_OTHERS[name]}"), name)
    if "__all__" not in globals() and (name == "__all__" or not name.startswith("_")):
        _load_layers()
    if name in globals():  # also where another thread has loaded it meanwhile
        return globals()[name]
    raise AttributeError(f"module 'tilewright.nn' has no attribute {name!r}")
