"""Programs that bring what is at fault themselves: a custom kernel with a race, an opt that is stated and illegal,
parts of the package that the script exchanges, one of several devices that is wrong, output that varies from run to
run. Whole investigations are slow; the parts that they need are tested quickly."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from tests.debug.test_sessions import investigate, place
from tests.fuzz.opts import compiling_devices
from tilewright import AddrSpace, AxisType, KernelInfo, Tensor, UOp
from tilewright.debug import dump, load_repro, sessions
from tilewright.debug.investigate.in_place import RESULT, examine_in_place
from tilewright.debug.investigate.kernel_audit import check_custom_kernels
from tilewright.debug.investigate.target import compare_output
from tilewright.debug.replay import bindings_of, contents_of
from tilewright.graph.ops import Ops

__all__ = ["place"]

HEAD = """import numpy as np
from tilewright import AddrSpace, AxisType, KernelInfo, Opt, OptOps, Tensor, UOp, dtypes

data = np.arange(240, dtype=np.float32).reshape(12, 20) - 100
x = Tensor(data).realize()
"""

TAIL = "\nassert np.allclose(got, want, rtol=1e-4), (got, want)\n"

_MISSING_BARRIER = """
def reversed_row(out, x):
    i = UOp.range(16, 0, AxisType.LOCAL)
    tile = UOp.placeholder((16,), x.dtype, 0, addrspace=AddrSpace.LOCAL)
    tile = tile[i].set(x[i])
    return out[i].set(tile[15 - i], end=i).sink(arg=KernelInfo("reversed_row", opts_to_apply=()))

row = Tensor(data[0, :16], device=DEVICE).realize()
got = (Tensor.empty(16, device=DEVICE).custom_kernel(row * 2 + 1, fxn=reversed_row)[0] + 1).numpy()
want = data[0, :16][::-1] * 2 + 2
"""

# The program, the kind and the name of what has to be named.
PROGRAMS: dict[str, tuple[str, str, str]] = {
    "a missing barrier on the emulator": (_MISSING_BARRIER.replace("DEVICE", "'PYTHON'"), "kernel", "reversed_row"),
    "a missing barrier on OPENCL": (_MISSING_BARRIER.replace("DEVICE", "'OPENCL'"), "kernel", "reversed_row"),
    "two work-items that write one element": (
        "def crowd(out, x):\n    i = UOp.range(x.shape[0], 0, AxisType.GLOBAL)\n"
        "    return out[i // 2].set(x[i], end=i).sink(arg=KernelInfo('crowd', opts_to_apply=()))\n"
        "got = Tensor.empty(10).custom_kernel(x[0].contiguous(), fxn=crowd)[0].numpy()\nwant = data[0, ::2]",
        "kernel",
        "crowd",
    ),
    "an opt that is stated and illegal": (
        "opts = (Opt(OptOps.UPCAST, 0, 7),)\ndef double(out, x):\n    i = UOp.range(x.shape[0], 0)\n"
        "    return out[i].set(x[i] * 2, end=i).sink(arg=KernelInfo('double', opts_to_apply=opts))\n"
        "got = Tensor.empty(20).custom_kernel(x[0].contiguous(), fxn=double)[0].numpy()\nwant = data[0] * 2",
        "opt",
        "Opt(OptOps.UPCAST, 0, 7)",
    ),
    "a transform that the script exchanges": (
        "import tilewright.kernel.transforms.registry as registry\nfrom tilewright.graph.ops import Ops\n"
        "from tilewright.graph.walk import map_graph\nold = registry.TRANSFORMS[OptOps.UNROLL]\n"
        "def wrong(view, axis, amount):\n    more = lambda node, src: node.with_src((src[0] + 1, *src[1:]))\n"
        "    made = old.apply(view, axis, amount)\n"
        "    return map_graph(made, lambda node, src: more(node, src) if node.op is Ops.REDUCE else None)\n"
        "registry.TRANSFORMS[OptOps.UNROLL] = old._replace(apply=wrong)\n"
        "def rows(out, x):\n    row, col = UOp.range(x.shape[0], 0), UOp.range(x.shape[1], 1, AxisType.REDUCE)\n"
        "    acc = UOp.placeholder((1,), out.dtype, 0, addrspace=AddrSpace.REG).after(row)[0].set(0)\n"
        "    acc = acc[0].set(acc.after(col)[0] + x[row, col], end=col)\n"
        "    info = KernelInfo('rows', opts_to_apply=(Opt(OptOps.UNROLL, 1, 4),))\n"
        "    return out[row].set(acc[0], end=row).sink(arg=info)\n"
        "got = Tensor.empty(12).custom_kernel(x, fxn=rows)[0].numpy()\nwant = data.sum(1)",
        "opt",
        "Opt(OptOps.UNROLL, 1, 4)",
    ),
    "a rule that the script exchanges": (
        "import tilewright.graph.simplify as simplify\nfor rules in (simplify.SCALAR_RULES, simplify.KERNEL_RULES):\n"
        "    for rule in rules:\n        if rule.name == 'divide-by-power-of-two':\n"
        "            rule.result = lambda x, c: x * (2.0 / c.arg)\n    rules.matchers.clear()\n"
        "got = ((x / 8).relu() * 2 + (x - x.max(1, keepdim=True))).sum(0).numpy()\n"
        "want = (np.maximum(data / 8, 0) * 2 + (data - data.max(1, keepdims=True))).sum(0)",
        "rule",
        "divide-by-power-of-two",
    ),
    "a lowering that the script exchanges": (
        "from tilewright.codegen.emulation import decompose\nfrom tilewright.graph.ops import Ops\n"
        "inner = decompose.BUILDERS[Ops.SIN]\n"
        "decompose.BUILDERS[Ops.SIN] = lambda node, native: inner(node, native) * 1.01\n"
        "got = (x.sin() * 3 + x.abs().sqrt()).sum(0).numpy()\n"
        "want = (np.sin(data) * 3 + np.sqrt(np.abs(data))).sum(0)",
        "pass",
        "codegen/decompose",
    ),
    "lifetimes that the script exchanges": (
        "import tilewright.schedule.steps.memory as memory\ninner = memory.lifetimes\n"
        "memory.lifetimes = lambda items: {s: (f, max(f, l - 1)) for s, (f, l) in inner(items).items()}\n"
        "a = (x + 1).contiguous()\nb = (a.flip(0) * 2).contiguous()\nc = (b.flip(1) + 1).contiguous()\n"
        "got = (c * 3).sum(1).numpy()\nwant = (((data + 1)[::-1] * 2)[:, ::-1] + 1).sum(1) * 3",
        "memory",
        "place_temps",
    ),
    "masks that the script drops": (
        "import tilewright.schedule.steps.split as split\nfrom tilewright.graph.walk import map_graph\n"
        "from tilewright.graph.ops import Ops\n"
        "def drop(node, src):\n    return src[1] if node.op is Ops.WHERE and node.dtype.is_float else None\n"
        "split.drop_masks = lambda sink: map_graph(sink, drop)\n"
        "got = (x.tril() + 1).sum(0).numpy()\nwant = (np.tril(data) + 1).sum(0)",
        "pass",
        "schedule/write_values",
    ),
    "a copy between devices that is too short": (
        "import tilewright.runtime.buffer as buffer, tilewright.engine.planning.launches as launches\n"
        "inner = buffer.transfer\ndef transfer(target, to, source, by, nbytes):\n"
        "    inner(target, to, source, by, nbytes - 4)\n"
        "buffer.transfer = launches.transfer = transfer\ny = Tensor(data, device='CPU:1').realize()\n"
        "got = ((y * 2).to('CPU') + 1).numpy()\nwant = data * 2 + 1",
        "copy",
        "CPU:1 to CPU",
    ),
    "one device of two that is wrong": (
        "import tilewright.backends.opencl.language as language\nfrom tilewright.graph.ops import Ops\n"
        "kind = next(v for n, v in vars(language).items() if n.startswith('O') and n.endswith('Language'))\n"
        "inner = kind.binary\ndef binary(self, op, dtype, *rest):\n"
        "    return inner(self, Ops.MIN if op is Ops.MAX and dtype is dtypes.float32 else op, dtype, *rest)\n"
        "kind.binary = binary\nresults = []\nfor device in ('CPU', 'OPENCL'):\n"
        "    y = Tensor(data, device=device).realize()\n"
        "    results.append(((y * 2).maximum(y + 3) + 1).sum(0).numpy())\nwant, got = results",
        "backend",
        "OPENCL",
    ),
    "a gradient that the script exchanges": (
        "from tilewright.graph.ops import Ops\ninner = Ops.MUL.gradient\n"
        "Ops.MUL.gradient = lambda m, g, y, *s: tuple(reversed(inner(m, g, y, *s)))\n"
        "a, b = (Tensor(data[n], requires_grad=True) for n in (0, 1))\n(a * b).sum().backward()\n"
        "got, want = a.grad.numpy(), data[1]",
        "gradient",
        "MUL",
    ),
    "a collective that the script exchanges": (
        "import tilewright.schedule.sharding.shard as shard\ninner = shard.all_reduce\n"
        "shard.all_reduce = lambda op, parts, devices: inner(op, [parts[0]] * len(parts), devices)\n"
        "got = (Tensor(data).shard(('CPU:0', 'CPU:1'), 0) * 2).sum().numpy()\nwant = data.sum() * 2",
        "sharding",
        "REDUCE_AXIS",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_what_a_program_brings_is_named(name: str, place: Path) -> None:
    text, kind, step = PROGRAMS[name]
    if "OPENCL" in text and "OPENCL" not in compiling_devices():
        pytest.skip("needs an OpenCL driver")
    record = investigate(place, HEAD + text + TAIL, 200.0)
    guilty = record["guilty"]
    assert guilty is not None, sessions.show(str(record["folder"]))
    assert (guilty["kind"], guilty["name"]) == (kind, step), guilty  # type: ignore[index]


@pytest.mark.slow
def test_a_test_that_fails_is_named(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its id, one of two sets of parameters."""
    (place / "test_scaled.py").write_text(
        "import numpy as np\nimport pytest\nfrom tilewright import Tensor\n\n"
        "@pytest.mark.parametrize('scale', [3, 4])\ndef test_scaled(scale):\n"
        "    data = np.arange(240, dtype=np.float32).reshape(12, 20)\n"
        "    got = ((Tensor(data).realize() + 3) / scale).sum(0).numpy()\n"
        "    np.testing.assert_allclose(got, ((data + 3) / scale).sum(0), rtol=1e-5)\n"
    )
    monkeypatch.setenv("TILEWRIGHT_PLANT", "wrong_simplify_rule")
    found = []
    for scale in (3, 4):
        session = sessions.start([f"test_scaled.py::test_scaled[{scale}]"], folder=str(place / "sessions"))
        found.append(sessions.wait(session, 200.0))
    assert "no failure was seen" in str(found[0]["conclusion"])
    assert found[1]["guilty"]["name"] == "divide-by-power-of-two"


# ---------------------------------------------------------------- the parts


def crowd(out: UOp, x: UOp) -> UOp:
    i = UOp.range(x.shape[0], 0, AxisType.LOCAL)
    return out[i // 2].set(x[i], end=i).sink(arg=KernelInfo("crowd", opts_to_apply=()))


def reversed_row(out: UOp, x: UOp) -> UOp:
    i = UOp.range(x.shape[0], 0, AxisType.LOCAL)
    tile = UOp.placeholder((x.shape[0],), x.dtype, 0, addrspace=AddrSpace.LOCAL)
    tile = tile[i].set(x[i])
    return (
        out[i].set(tile.after(UOp.barrier(tile))[15 - i], end=i).sink(arg=KernelInfo("reversed_row", opts_to_apply=()))
    )


def test_a_race_of_a_custom_kernel_is_found_on_any_device(tmp_path: Path) -> None:
    x = Tensor(np.arange(16, dtype=np.float32)).realize()
    repro = load_repro(str(dump(tmp_path / "a.repro", Tensor.empty(8).custom_kernel(x * 2, fxn=crowd)[0] + 1)))
    bindings, seen = bindings_of(repro.graph.src, contents_of(repro)), set[UOp]()
    found = check_custom_kernels(repro.graph.src, bindings, seen)
    assert found is not None
    assert (found.kind, found.name) == ("kernel", "crowd")
    assert "RaceError" in found.text
    assert check_custom_kernels(repro.graph.src, bindings, seen) is None  # looked at once
    repro = load_repro(str(dump(tmp_path / "a.repro", Tensor.empty(16).custom_kernel(x, fxn=reversed_row)[0])))
    assert check_custom_kernels(repro.graph.src, bindings_of(repro.graph.src, contents_of(repro)), seen) is None
    assert len(seen) == 2


def test_steps_are_checked_where_the_program_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tilewright.codegen.emulation import decompose

    x = Tensor(np.arange(20, dtype=np.float32)).realize()
    examine_in_place(load_repro(str(dump(tmp_path / "a.repro", (x.exp2() * 3 + 1).sum(0)))), str(tmp_path))
    assert not os.path.exists(tmp_path / RESULT)
    inner = decompose.BUILDERS[Ops.SIN]
    monkeypatch.setitem(decompose.BUILDERS, Ops.SIN, lambda node, native: inner(node, native) * 1.01)
    examine_in_place(load_repro(str(dump(tmp_path / "a.repro", (x.sin() * 3 + 1).sum(0)))), str(tmp_path))
    assert '"name": "codegen/decompose"' in (tmp_path / RESULT).read_text()
    assert load_repro(str(tmp_path / "smallest.repro")).nodes <= 4


def test_what_varies_from_run_to_run_says_nothing() -> None:
    assert compare_output("took 1.5 s", "took 9.5 s", "took 2.5 s") == ""
    assert compare_output("loss 1.0 took 1.5 s", "loss 3.0 took 9.5 s", "loss 1.0 took 2.5 s") != ""
    assert compare_output("at 0x7f01", "at 0x7e02", "at 0x7d03") == ""
    assert compare_output("a b", "c d", "e") == ""
    assert compare_output("a b", "c d", "a b") == "the output is another text"
