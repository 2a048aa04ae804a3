"""The CPU device and its threads: values that do not depend on their number, limits that are kept, small kernels that
wake nobody. Each number of threads is a process of its own, because the option is read when the device is opened."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tilewright.backends.cpu.host import system

VALUES = """
import hashlib, json
import numpy as np
from tilewright import Tensor, nn

rng = np.random.default_rng(3)


def normal(*shape, scale=1):
    return Tensor(rng.standard_normal(shape, dtype=np.float32) * np.float32(scale)).realize()


def train():
    conv, linear = nn.Conv2d(1, 4, 3), nn.Linear(4 * 10 * 10, 10)
    parameters = [conv.weight, conv.bias, linear.weight, linear.bias]
    for parameter in parameters:
        parameter.assign(normal(*parameter.shape, scale=0.1))
    optimizer = nn.optim.Adam(parameters)
    with Tensor.train():
        optimizer.zero_grad()
        hidden = conv(normal(8, 1, 12, 12)).relu().flatten(1)
        loss = linear(hidden).sparse_categorical_crossentropy(Tensor(np.arange(8, dtype=np.int32)))
        loss.backward()
        optimizer.step()
    return Tensor.cat(loss.reshape(1), *(parameter.flatten() for parameter in parameters))


def attention():
    query, key, value = normal(1, 2, 130, 16), normal(1, 1, 2100, 16), normal(1, 1, 2100, 16)
    found = query.scaled_dot_product_attention(key, value, enable_gqa=True)
    gradients = found.gradient(query, key, value, gradient=query)
    return Tensor.cat(*(each.flatten() for each in (found, *gradients)))


a, b, wide, long = normal(130, 257), normal(257, 190), normal(70, 5000), normal(1 << 20)
x, kernel = normal(2, 8, 20, 20), normal(16, 8, 3, 3)
values = {
    "matmul": a @ b,
    "matmul with a long sum": normal(45, 6000) @ normal(6000, 150),
    "matmul of three matrices each": normal(3, 128, 128) @ normal(3, 128, 96),
    "sum of all": long.sum(),
    "sum of rows": wide.sum(1),
    "sum of columns": wide.sum(0),
    "vector times a large matrix": normal(1, 4100) @ normal(4100, 2048),
    "softmax": wide.softmax(-1),
    "convolution": x.conv2d(kernel),
    "training step": train(),
    "attention and its gradients": attention(),
}
digests = {name: hashlib.sha256(value.detach().numpy().tobytes()) for name, value in values.items()}
print(json.dumps({name: digest.hexdigest() for name, digest in digests.items()}))
"""

LAUNCHES = """
from tilewright import Tensor, jit
from tilewright.backends.cpu.device import CpuDriver

small = jit(lambda x: (x + 1).realize())
for _ in range(5):
    small(Tensor([1.0] * 16))
print(CpuDriver.pool().started, end=" ")
x = Tensor.rand(1 << 20).realize()
(x * 2).realize()
print(CpuDriver.pool().started)
"""


def in_process(code: str, threads: int) -> str:
    environment = {**os.environ, "TILEWRIGHT_THREADS": str(threads)}
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    ).stdout


def test_values_do_not_depend_on_the_number_of_threads() -> None:
    assert json.loads(in_process(VALUES, 1)) == json.loads(in_process(VALUES, 3))


@pytest.mark.parametrize(("threads", "expected"), [(1, "0 0"), (3, "0 2")])
def test_workers_start_with_the_first_kernel_that_gains_from_them(threads: int, expected: str) -> None:
    assert in_process(LAUNCHES, threads).split() == expected.split()


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system does not tell which cores are ours")
@pytest.mark.parametrize(
    ("allowed", "quota", "cores"), [({0, 2}, "", 2), ({0, 1, 2}, "150000 100000", 2), ({1}, "", 1)]
)
def test_affinity_and_quota_limit_the_threads(
    allowed: set[int], quota: str, cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: allowed)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/\n")
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (group / "cpu.max").write_text(quota or "max 100000")
    assert system.usable_cores(root=tmp_path) == cores
