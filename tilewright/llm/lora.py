"""Fine-tuning by low-rank adapters. In: a model, quantised or not. Out: the same model with a product of two
small float matrices beside each of its products; they alone are trained. The second one begins at zero, so that the
model begins as it was. Gradients flow through the quantised products to what comes before them."""

from __future__ import annotations

from collections.abc import Collection

from tilewright.base.dtype import dtypes
from tilewright.base.errors import ConfigError
from tilewright.graph.spec import Devices
from tilewright.llm.network.layers import Linear
from tilewright.llm.network.model import Transformer
from tilewright.tensor.tensor import Tensor

# The products of attention and of feed-forward layers, by the names that `network/` gives them.
PARTS = ("q", "k", "v", "o", "gate", "up", "down")


class AdaptedLinear(Linear):
    """base(x) + scale * up(down(x)), with `down` (rank, inputs) and `up` (outputs, rank)."""

    def __init__(self, base: Linear, rank: int, scale: float, device: Devices) -> None:
        super().__init__(base.weight, base.bias)
        outputs, inputs = base.weight.shape
        self.scale = scale
        self.lora_down = _placed(Tensor.randn(rank, inputs) * inputs**-0.5, device)
        self.lora_up = _placed(Tensor.zeros(outputs, rank), device)

    def __call__(self, x: Tensor) -> Tensor:
        narrow = x @ self.lora_down.cast(x.dtype).transpose()
        return super().__call__(x) + narrow @ self.lora_up.cast(x.dtype).transpose() * self.scale


def add_adapters(
    model: Transformer, rank: int = 8, alpha: float = 16.0, parts: Collection[str] = ("q", "v")
) -> list[Tensor]:
    """Puts an adapter beside the named products of every layer (`PARTS`); the tensors to train. Experts have none."""
    unknown = [part for part in parts if part not in PARTS]
    if unknown or rank < 1:
        message = f"adapters of rank {rank} for {', '.join(parts)}"
        raise ConfigError("add_adapters", message, f"give a positive rank, and parts of {', '.join(PARTS)}")
    trained: list[Tensor] = []
    for layer in model.layers:
        for owner in (layer.attention, layer.feed_forward):
            for part in parts:
                base = getattr(owner, part, None)
                if isinstance(base, Linear):
                    adapted = AdaptedLinear(base, rank, alpha / rank, model.device)
                    setattr(owner, part, adapted)
                    trained += [adapted.lora_down, adapted.lora_up]
    return trained


def _placed(values: Tensor, device: Devices) -> Tensor:
    """A parameter where the model is."""
    held = values.cast(dtypes.float32)
    return (held.to(device) if isinstance(device, str) else held.shard(device)).contiguous().realize().requires_grad_()
