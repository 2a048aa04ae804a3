"""Real bugs of this project's history. Each fix is taken back in a scratch copy of the package, as a text that stands
there exactly once and the text that stood there before it; a program that the bug breaks comes with it, and the step
that an investigation has to name. Where a fix has been rewritten since, what is taken back is what it became."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]


class Fix(NamedTuple):
    """`text` of a file of the package is the fix, `before` what stood there."""

    path: str
    text: str
    before: str


class RealBug(NamedTuple):
    """`commit` fixed it. `kind` and `name` are those of the finding; `symptom` is how the program fails with it."""

    commit: str
    fixes: tuple[Fix, ...]
    program: str
    kind: str
    name: str
    symptom: str = "AssertionError: ("


class StaleMendError(Exception):
    """A fix that is not where it was, so that it cannot be taken back."""


def taken_back(text: str, fix: Fix) -> str:
    """The text of a file without the fix."""
    count = text.count(fix.text)
    if count != 1:
        raise StaleMendError(
            f"the fix in tilewright/{fix.path} stands there {count} times, not once: the file has been rewritten. "
            f"Find where the fix is now and enter that in tests/debug/real_bugs.py:\n{fix.text}"
        )
    return text.replace(fix.text, fix.before)


def scratch_copy(folder: Path, fixes: tuple[Fix, ...]) -> Path:
    """A copy of the package without the fixes, to be put on PYTHONPATH."""
    shutil.copytree(ROOT / "tilewright", folder / "tilewright")
    for fix in fixes:
        path = folder / "tilewright" / fix.path
        path.write_text(taken_back(path.read_text(encoding="utf-8"), fix), encoding="utf-8")
    return folder


HEAD = """import numpy as np
from tilewright import Context, Tensor, dtypes, jit

data = (np.arange(240, dtype=np.float32).reshape(12, 20) % 7) - 3
x = Tensor(data).realize()
"""

TAIL = """
assert np.allclose(got, want, rtol=1e-4, atol=1e-4, equal_nan=True), (got, want)
"""


def script_of(name: str) -> str:
    return HEAD + REAL_BUGS[name].program + TAIL


REAL_BUGS: dict[str, RealBug] = {
    # Folding leaves a sum over two loops beside one over the inner loop alone, which the lineariser has no place for.
    "two sums that share one of their loops": RealBug(
        "5cbe239",
        (
            Fix(
                "codegen/pipeline.py",
                '    Pass("separate_loops", on_sink(separate_loops), "any reductions", '
                '"each loop belongs to one nest"),\n',
                "",
            ),
        ),
        "a = np.arange(486).reshape(9, 6, 1, 9)\nb = np.array([0.0, 1.0], np.float32)\n"
        "flags = Tensor(b).realize() == 1.0\n"
        "both = Tensor(a).realize() + flags.cast(dtypes.int64).reshape(1, 2).expand(243, 2).reshape(9, 6, 1, 9)\n"
        "total = both.sum((0, 1))\ntotal.realize(flags)\ngot = total.numpy()\n"
        "want = (a + np.broadcast_to(b == 1, (243, 2)).reshape(9, 6, 1, 9)).sum((0, 1))",
        "pass",
        "codegen/linearise",
        symptom="this is a bug in Tilewright",
    ),
    # The mask of an index that is computed from what another one loads kept the old start of that memory.
    "a mask computed from loads": RealBug(
        "020d908",
        (
            Fix(
                "schedule/steps/items.py",
                "    if is_moved and has_nested_indices(nodes):\n",
                "    if is_moved and any(node.op is Ops.CAST and node.dtype.name == 'index' for node in nodes):\n",
            ),
        ),
        "rows, columns = np.nonzero(data > 0)\ngot = Tensor(data).realize()[x > 0].numpy()\nwant = data[rows, columns]",
        "pass",
        "schedule/write_items",
    ),
    # A replay that did not see what the function reads change.
    "guards that do not see a change": RealBug(
        "e71e44e",
        (
            Fix(
                "engine/jit/guards.py",
                "            (self._text_of_entry, self.mappings, self._entries_hold),\n",
                "",
            ),
        ),
        "class Settings:\n    scale = 2.0\n\nsettings = Settings()\n\n@jit\ndef step(x):\n"
        "    return (x * settings.scale + 1).sum(0).realize()\n\n"
        "for scale in (2.0, 2.0, 2.0, 3.0):\n    settings.scale = scale\n    got = step(x).numpy()\n"
        "want = (data * 3 + 1).sum(0)",
        "jit",
        "step",
    ),
    # Both updates were made in the memory of the version that they start from: each saw the other's element.
    "two updates of one version": RealBug(
        "8d9efe8",
        (
            Fix(
                "schedule/steps/order.py",
                '"fresh" if self._base(node) in taken else self._first_mode(node)',
                "self._first_mode(node)",
            ),
        ),
        "first, second = (x * 2).contiguous(), (x * 2).contiguous()\nfirst[0:1] = 7.0\nsecond[4:6] = 9.0\n"
        "Tensor.realize(first, second)\ngot = np.stack([first.numpy(), second.numpy()])\n"
        "want = np.stack([data * 2, data * 2])\nwant[0, 0:1], want[1, 4:6] = 7, 9",
        "pass",
        "schedule/order_steps",
    ),
    # sum(a + b) was taken apart: large a and b cancel in each element and do not cancel in the sums.
    "a sum of rounded sums": RealBug(
        "789f98a",
        (
            Fix(
                "graph/simplify/reduce.py",
                "node.src[0].op is Ops.ADD and not node.dtype.is_float",
                "node.src[0].op is Ops.ADD",
            ),
        ),
        "eye = Tensor.arange(4).reshape(4, 1) == Tensor.arange(8).reshape(1, 8)\n"
        "large = np.full(4, 1e8, np.float32)\nrow = np.array([1, 1, 1, -1e8, 1, 1, 1, 1], np.float32)\n"
        "masked = eye.where(Tensor(large).realize().reshape(4, 1), 0.0)\n"
        "got = (masked + Tensor(row).realize().reshape(1, 8)).sum(1).numpy()\n"
        "want = (np.where(np.eye(4, 8) > 0, large[:, None], 0).astype(np.float32) + row).sum(1)\n"
        "got, want = got[3:], want[3:]",
        "rule",
        "reduce-parts",
    ),
    # Bits that are not 0 are True, and True has one pattern of bits.
    "a bool that remembers its bits": RealBug(
        "634b2d9",
        (
            Fix(
                "graph/simplify/cast.py",
                "            when=lambda node, x, inner: not inner.dtype.is_bool,\n",
                "",
            ),
        ),
        "flags = np.array([60, 0, 1, 7], np.uint8)\n"
        "got = (Tensor(flags).realize().bitcast(dtypes.bool).bitcast(dtypes.uint8) + 1).numpy()\n"
        "want = (flags != 0).astype(np.uint8) + 1",
        "rule",
        "bitcast-twice",
    ),
    # What is not less than a NaN has no known range: exp of it lost the limits of its argument.
    "the range of what is not less than a NaN": RealBug(
        "a8d72ac",
        (
            Fix(
                "codegen/emulation/float_range.py",
                "    return x.is_const and not math.isnan(x.arg)\n",
                "    return True\n",
            ),
        ),
        "y = np.where(data > 2, np.nan, np.clip(data, -2, 2)).astype(np.float32)\nz = np.abs(data) * 100\n"
        "limit = Tensor(y).realize().clamp(-2.0, 2.0)\nvalue = Tensor(z).realize()\n"
        "got = (limit < value).where(0.0, value).exp().numpy()\nwant = np.exp(np.where(np.clip(y, -2, 2) < z, 0, z))",
        "pass",
        "codegen/decompose",
    ),
}
