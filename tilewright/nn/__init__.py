"""Networks: layers here, and `nn.optim`, `nn.state`, `nn.datasets` beside them. A layer is a plain object with tensors
as attributes and a `__call__`; a model is any object that holds layers. Parameters want gradients, running statistics
do not. Names of tensors, and how they start, are torch's, so that weights go both ways."""

import importlib
from typing import TYPE_CHECKING, Any

from tilewright.nn.containers import (
    GELU,
    AdaptiveAvgPool2d,
    AvgPool2d,
    Dropout,
    Flatten,
    Identity,
    LeakyReLU,
    MaxPool2d,
    ModuleDict,
    ModuleList,
    ReLU,
    Sequential,
    Sigmoid,
    SiLU,
    Softmax,
    Tanh,
)
from tilewright.nn.layers import Conv1d, Conv2d, ConvTranspose1d, ConvTranspose2d, Embedding, Linear
from tilewright.nn.normalisation import (
    BatchNorm,
    BatchNorm2d,
    BatchNorm3d,
    GroupNorm,
    InstanceNorm,
    LayerNorm,
    LayerNorm2d,
    RMSNorm,
)
from tilewright.nn.recurrent import GRU, LSTM, RNN, GRUCell, LSTMCell, RNNCell
from tilewright.nn.transformer import MultiheadAttention, TransformerEncoder, TransformerEncoderLayer

if TYPE_CHECKING:
    import tilewright.nn.datasets as datasets
    import tilewright.nn.optim as optim
    import tilewright.nn.state as state

__all__ = [
    "GELU",
    "GRU",
    "LSTM",
    "RNN",
    "AdaptiveAvgPool2d",
    "AvgPool2d",
    "BatchNorm",
    "BatchNorm2d",
    "BatchNorm3d",
    "Conv1d",
    "Conv2d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "Dropout",
    "Embedding",
    "Flatten",
    "GRUCell",
    "GroupNorm",
    "Identity",
    "InstanceNorm",
    "LSTMCell",
    "LayerNorm",
    "LayerNorm2d",
    "LeakyReLU",
    "Linear",
    "MaxPool2d",
    "ModuleDict",
    "ModuleList",
    "MultiheadAttention",
    "RMSNorm",
    "RNNCell",
    "ReLU",
    "Sequential",
    "SiLU",
    "Sigmoid",
    "Softmax",
    "Tanh",
    "TransformerEncoder",
    "TransformerEncoderLayer",
    "datasets",
    "optim",
    "state",
]


def __getattr__(name: str) -> Any:
    if name in ("datasets", "optim", "state"):
        return importlib.import_module(f"tilewright.nn.{name}")
    raise AttributeError(f"module 'tilewright.nn' has no attribute {name!r}")
