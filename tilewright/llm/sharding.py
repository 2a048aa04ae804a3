"""A network on several devices. In: a model on one device and the names of several. Out: the same model, its weights
divided among them. Every product is divided by the rows of its weight, so that each element of a result is computed
by one device as before and tokens do not depend on the number of devices: what crosses between devices are
activations, never partial sums. Norms and biases are small, and each device has a copy."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.base.errors import DeviceError
from tilewright.graph.spec import Devices
from tilewright.llm.network.attention import Attention
from tilewright.llm.network.experts import MixtureOfExperts
from tilewright.llm.network.latent import HeadMatrices
from tilewright.llm.network.layers import Embedding, FeedForward, Linear, Norm, Rotary, Weight
from tilewright.llm.network.model import Transformer
from tilewright.llm.quantised.weight import QuantisedWeight
from tilewright.tensor.tensor import Tensor


def device_names(device: Devices, count: int) -> tuple[str, ...]:
    """`count` devices of one kind: DEV, DEV:1, DEV:2, ..."""
    kind = (device if isinstance(device, str) else device[0]).partition(":")[0]
    if count < 1:
        raise DeviceError("shard", f"the number of devices is {count}", "give a positive one")
    return (kind, *(f"{kind}:{number}" for number in range(1, count)))


def shard_model(model: Transformer, devices: Sequence[str]) -> Transformer:
    """Divides the weights of a model, which then takes tokens and positions that each device has a copy of
    (`Tensor.shard(devices)`). Caches are made on the same devices. The embedding stays on the first device, because
    only single rows of it are read."""
    names = tuple(devices)
    if len(names) < 2:
        return model
    table = model.embedding.weight
    model.embedding = Embedding(_moved(table, names[0]), names)
    model.head = Linear(_divided(model.head.weight, names, 0), _copied(model.head.bias, names))
    model.rotaries = [Rotary(rotary.rope, names) for rotary in model.rotaries]
    _shard_parts(model.norm, names)
    for layer in model.layers:
        for part in vars(layer).values():
            _shard_parts(part, names)
    return model


def _shard_parts(part: object, devices: tuple[str, ...]) -> None:
    """Shards the tensors of a part of a layer, and its inner parts."""
    if isinstance(part, Norm):
        part.weight = part.weight.shard(devices)
    elif isinstance(part, Linear):
        part.weight, part.bias = _divided(part.weight, devices, 0), _copied(part.bias, devices)
    elif isinstance(part, HeadMatrices):
        part.weight = _divided(part.weight, devices, None)
    elif isinstance(part, MixtureOfExperts):
        # Every device has some rows of every expert: which are chosen does not change what it reads.
        part.gate, part.up, part.down = (_divided(weight, devices, 1) for weight in (part.gate, part.up, part.down))
        part.choice_bias = _copied(part.choice_bias, devices)
        _shard_parts(part.router, devices)
        _shard_parts(part.shared, devices)
    elif isinstance(part, Attention | FeedForward) or hasattr(part, "kv_down"):
        for inner in vars(part).values():
            _shard_parts(inner, devices)


def _divided(weight: Weight, devices: tuple[str, ...], axis: int | None) -> Weight:
    """A weight with its rows divided among devices; copied to each where there are fewer rows than devices."""
    if axis is not None and weight.shape[axis] < len(devices):
        axis = None
    if isinstance(weight, QuantisedWeight):
        return QuantisedWeight(weight.kind, weight.shape, weight.blocks.shard(devices, axis).realize())
    made = weight.shard(devices, axis).realize()
    return made.requires_grad_(weight.requires_grad)


def _copied(bias: Tensor | None, devices: tuple[str, ...]) -> Tensor | None:
    return None if bias is None else bias.shard(devices)


def _moved(weight: Weight, device: str) -> Weight:
    if isinstance(weight, QuantisedWeight):
        return QuantisedWeight(weight.kind, weight.shape, weight.blocks.to(device))
    return weight.to(device)
