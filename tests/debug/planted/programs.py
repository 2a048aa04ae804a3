"""A program for each planted bug, which it makes fail, and the step that has to be named. The programs are small as a
user's are: some more operations than the bug needs stand around it."""

from __future__ import annotations

from typing import NamedTuple


class Program(NamedTuple):
    """`kind` and `name` are those of the finding; `name` may be a part of it. `symptom` is how the program fails with
    the bug: by its own comparison, unless the emulator stops it before."""

    text: str
    kind: str
    name: str
    symptom: str = "AssertionError: ("
    may_crash: bool = False  # where the bug makes kernels write to other addresses


HEAD = """import numpy as np
from tilewright import Context, Tensor, jit

data = (np.arange(240, dtype=np.float32).reshape(12, 20) % 7) - 3
x = Tensor(data).realize()
"""

TAIL = """
assert np.allclose(got, want, rtol=1e-4, atol=1e-4), (got, want)
"""

_CHAIN = """a = (x * 2 + 1).relu()
b = a.sum(1)
"""

PROGRAMS: dict[str, Program] = {
    "wrong_simplify_rule": Program(
        _CHAIN + "got = ((x + 3) / 4 + b.reshape(12, 1) * 0.5).sum(0).numpy()\n"
        "want = ((data + 3) / 4 + np.maximum(data * 2 + 1, 0).sum(1, keepdims=True) * 0.5).sum(0)",
        "rule",
        "divide-by-power-of-two",
    ),
    "bad_constant_folding": Program(
        _CHAIN + "c = Tensor.full((12, 20), 3.0) * 5.0\ngot = (x.exp() * c + b.reshape(12, 1)).numpy()\n"
        "want = np.exp(data) * 15 + np.maximum(data * 2 + 1, 0).sum(1, keepdims=True)",
        "rule",
        "fold-binary",
    ),
    "wrong_remainder_rule": Program(
        "n = Tensor.arange(20)\ngot = ((n % 12) * 3 + n).numpy()\nwant = (np.arange(20) % 12) * 3 + np.arange(20)",
        "rule",
        "remainder-of-sum",
    ),
    "wrong_comparison_rule": Program(
        "n = Tensor.arange(20)\ngot = ((n // 4) < 3).where(x.sum(0), 0.0).numpy()\n"
        "want = np.where(np.arange(20) // 4 < 3, data.sum(0), 0)",
        "rule",
        "quotient-below",
    ),
    "illegal_opt": Program(
        "y = Tensor(data.reshape(-1)[:10]).realize()\ngot = (y * y + 3).exp().log().numpy()\n"
        "want = data.reshape(-1)[:10] ** 2 + 3",
        "opt",
        "UPCAST",
    ),
    "wrong_tail_mask": Program(
        "y = Tensor(data.reshape(-1)[:21]).realize()\ngot = (y * y + 3).sqrt().numpy()\n"
        "want = np.sqrt(data.reshape(-1)[:21] ** 2 + 3)",
        "opt",
        "PADTO",
    ),
    "wrong_index_width": Program(
        "got = (x.T.contiguous() * 2 + 1).sum(1).numpy()\nwant = (data.T * 2 + 1).sum(1)",
        "pass",
        "codegen/choose_index_width",
        may_crash=True,
    ),
    "short_symbolic_loop": Program(
        "from tilewright import Variable\nn = Variable('n', 1, 12)\nfor rows in (5, 9):\n"
        "    got = (x[: n.bind(rows)] * 2 + 1).sum(0).numpy()\n    want = (data[:rows] * 2 + 1).sum(0)",
        "pass",
        "codegen/separate_loops",
    ),
    "wrong_decompose_rule": Program(
        "got = (x.softmax(1) + x.exp()).numpy()\ne = np.exp(data)\nwant = e / e.sum(1, keepdims=True) + e",
        "pass",
        "codegen/decompose",
    ),
    "wrong_reduce_identity": Program(
        "got = ((x - 10).max(1) * 2).numpy()\nwant = (data - 10).max(1) * 2",
        "pass",
        "codegen/linearise",
    ),
    "short_partial_sums": Program(
        "big = np.arange(1 << 18, dtype=np.float32) % 1000\ngot = (Tensor(big).realize() * 0.25).sum().numpy()\n"
        "want = (big * 0.25).astype(np.float64).sum()",
        "pass",
        "schedule/prepare_graph",
    ),
    "dropped_barrier": Program(
        "y = Tensor(data, device='PYTHON').realize()\ngot = (y * 2).sum(1).numpy()\nwant = (data * 2).sum(1)",
        "pass",
        "codegen/lower_groups",
        symptom="RaceError: ",
    ),
    "slot_used_twice": Program(
        "y = Tensor(data, device='PYTHON').realize()\n"
        "got = ((y - y.max(1, keepdim=True)) * 2 + y).sum(1).numpy()\n"
        "want = ((data - data.max(1, keepdims=True)) * 2 + data).sum(1)",
        "pass",
        "codegen/lower_groups",
        symptom="RaceError: ",
    ),
    "overlapping_temps": Program(
        "a = (x + 1).contiguous()\nb = (a.flip(0) * 2).contiguous()\nc = (b.flip(1) + 1).contiguous()\n"
        "got = (c * 3).sum(1).numpy()\nwant = (((data + 1)[::-1] * 2)[:, ::-1] + 1).sum(1) * 3",
        "memory",
        "place_temps",
    ),
    "read_after_write": Program(
        "y = Tensor(data).realize()\ny.assign((y.flip(0) * 2 + 1))\ngot = y.numpy()\nwant = data[::-1] * 2 + 1",
        "pass",
        "schedule/order_steps",
    ),
    "missing_signal": Program(
        "y = Tensor(data, device='CPU:1').realize()\ny.numpy()\n"
        "got = ((y * 2 + 1).to('CPU') + x).numpy()\nwant = data * 2 + 1 + data",
        "queue",
        "",
    ),
    "stale_jit_constant": Program(
        "@jit\ndef step(x, scale):\n    return (x * scale + 1).sum(0).realize()\n"
        "for scale in (2.0, 2.0, 2.0, 3.0):\n    got = step(x, scale).numpy()\nwant = (data * 3 + 1).sum(0)",
        "jit",
        "step",
    ),
    "stale_cache_entry": Program(
        "first = (x * 2).relu().realize()\ngot = (x * 5).relu().numpy()\nwant = np.maximum(data * 5, 0)",
        "cache",
        "",
    ),
    "wrong_gradient_rule": Program(
        "w = Tensor(np.abs(data) + 1, requires_grad=True).realize()\n(w.sqrt() * 3).sum().backward()\n"
        "got = w.grad.numpy()\nwant = 3 / (2 * np.sqrt(np.abs(data) + 1))",
        "gradient",
        "SQRT",
    ),
    "wrong_instruction": Program(
        "got = ((x < 1).where(x * 2, x + 5)).sum(1).numpy()\nwant = np.where(data < 1, data * 2, data + 5).sum(1)",
        "backend",
        "CPU",
    ),
    "wrong_broadcast_lane": Program(
        "got = ((x + 0.5) * 3).exp2().numpy()\nwant = np.exp2((data + 0.5) * 3)",
        "backend",
        "CPU",
    ),
    "lost_part_of_a_sum": Program(
        "y = Tensor(data).shard(('CPU:0', 'CPU:1'), 0)\ngot = (y * 2).sum(0).numpy()\nwant = (data * 2).sum(0)",
        "sharding",
        "",
    ),
}


def script_of(name: str) -> str:
    return HEAD + PROGRAMS[name].text + TAIL
