"""A network whose weights are divided among devices gives the tokens of one device."""

from __future__ import annotations

import pytest

from tests.llm.gguf_models import random_model
from tests.llm.models import STORIES_TOKENS, greedy, stories, whole
from tilewright import Device, Tensor
from tilewright.base.errors import DeviceError
from tilewright.engine.memory.parts import layout_of
from tilewright.llm.sharding import device_names, shard_model


def shards(device: str, count: int) -> list[int]:
    """The tokens of stories260K on so many devices."""
    return greedy(shard_model(stories(device), device_names(device, count)), [1], 200)


def test_stories_on_two_devices() -> None:
    assert shards("CPU", 2) == STORIES_TOKENS[1:]


@pytest.mark.slow
@pytest.mark.parametrize("is_jitted", [False, True])
@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("device", ["CPU", "OPENCL"])
def test_stories_on_any_number_of_devices(device: str, count: int, is_jitted: bool) -> None:
    reason = Device.availability()[device]
    if reason is not None:
        pytest.skip(f"{device}: {reason}")
    model = shard_model(stories(device), device_names(device, count))
    assert greedy(model, [1], 200, is_jitted=is_jitted) == STORIES_TOKENS[1:]


def test_weights_and_cache_are_divided() -> None:
    model = shard_model(stories(), device_names("CPU", 4))
    layer = model.layers[2]
    assert layout_of(layer.attention.q.weight.uop) == (0, (16, 16, 16, 16))
    assert layout_of(layer.feed_forward.down.weight.uop) == (0, (16, 16, 16, 16))
    assert layout_of(model.head.weight.uop) == (0, (128,) * 4)
    assert layout_of(model.make_cache(1, 8).layers[0][0].uop) == (1, (1, 1, 1, 1))
    assert model.device == ("CPU", "CPU:1", "CPU:2", "CPU:3")


@pytest.mark.parametrize("name", ["gemma3", pytest.param("deepseek2", marks=pytest.mark.slow)])
def test_other_families_are_divided(name: str) -> None:
    """Experts, latent attention and heads that three devices do not divide evenly."""
    model, _ = random_model(name)
    tokens = [[3, 1, 4, 1, 5]]
    wanted = model(Tensor(tokens, dtype="int32")).argmax(-1).tolist()
    shard_model(model, device_names("CPU", 3))
    assert model(whole(tokens, model)).argmax(-1).tolist() == wanted


def test_a_number_of_devices_that_is_none() -> None:
    assert device_names("OPENCL:1", 3) == ("OPENCL", "OPENCL:1", "OPENCL:2")
    with pytest.raises(DeviceError, match="number of devices is 0"):
        device_names("CPU", 0)
