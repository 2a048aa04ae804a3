"""What CONTRIBUTING.md says of adding an op, a backend and an option, done: in a copy of the package only the files
that it names are written, and the addition works there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.examples import DOCS, ROOT, examples_of
from tests.meta.test_imports import PACKAGE, broken_walls

BACKEND_PAGE = DOCS / "add_a_backend.md"
OP_PAGE = DOCS / "add_an_op.md"
RUN_CASES = """
from tests.devices import Setting
from tests.ops.table import TABLE
from tests.ops.test_table import check_values
from tilewright import Device, Tensor, jit

assert "NUMPY" in list(Device) and Device.availability()["NUMPY"] is None
setting = Setting("NUMPY", "NUMPY")
cases = [row for number, row in enumerate(TABLE) if number % 60 == 0]
for row in cases:
    check_values(row, setting)
step = jit(lambda x: (x @ x.T).relu().realize())
x = Tensor([[1.0, 2.0], [3.0, -4.0]], device="NUMPY")
assert [step(x).tolist() for _ in range(4)] == [[[5.0, 0.0], [0.0, 25.0]]] * 4 and step.last_reason == ""
print(len(cases), "cases")
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the package that may be changed."""
    return Path(shutil.copytree(PACKAGE, tmp_path / "tilewright"))


def run(folder: Path, *command: str, **options: str) -> str:
    """What Python prints with the copy in the place of the package."""
    cache = str(folder / "cache")
    environment = {**os.environ, **options, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}", "TILEWRIGHT_CACHE_DIR": cache}
    done = subprocess.run([sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def insert_line(path: Path, before: str, line: str) -> None:
    """Adds one line to a file, before the only one that begins with a text."""
    text = path.read_text()
    assert text.count(before) == 1, f"{path.name} does not have {before!r} once"
    path.write_text(text.replace(before, line + before))


def changed_files(package: Path) -> set[str]:
    """The files of a copy that the package does not have, or has otherwise."""
    found = {path.relative_to(package) for path in package.rglob("*.py")}
    return {
        str(name)
        for name in found
        if not (PACKAGE / name).exists() or (PACKAGE / name).read_bytes() != (package / name).read_bytes()
    }


def files_named(heading: str) -> set[str]:
    """The files of the package in the row of CONTRIBUTING.md's table that begins with a text."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    (row,) = re.findall(rf"^\| {re.escape(heading)} \|(.*)$", text, flags=re.MULTILINE)
    return set(re.findall(r"`tilewright/([\w/.<>]+)`", row))


def test_a_backend_is_a_folder_and_a_line(package: Path) -> None:
    source = "\n\n\n".join(block.strip() for block in examples_of(BACKEND_PAGE)) + "\n"
    folder = package / "backends" / "numpy"
    folder.mkdir()
    (folder / "__init__.py").write_text('"""Kernels as Python functions over NumPy arrays."""\n')
    (folder / "device.py").write_text(source)
    (line,) = re.findall(r'^```\n(    "NUMPY": .*\n)```$', BACKEND_PAGE.read_text(), flags=re.MULTILINE)
    insert_line(package / "backends" / "registry.py", '    "OPENCL":', line)
    assert broken_walls(source, PACKAGE / "backends" / "numpy" / "device.py") == []
    assert changed_files(package) == {name.replace("<name>", "numpy") for name in files_named("a backend")}
    assert "cases" in run(package.parent, "-W", "error", "-c", RUN_CASES, XDG_RUNTIME_DIR="/tmp")


def test_an_option_is_a_line(package: Path) -> None:
    declaration = '    EXAMPLE_LIMIT = _option(3, "An example.", minimum=1)\n'
    insert_line(package / "base" / "config.py", "    FOLD_REDUCE = ", declaration)
    assert changed_files(package) == files_named("an option")
    program = """
from tilewright.base.config import Context, options
print(options.EXAMPLE_LIMIT)
with Context(EXAMPLE_LIMIT=5):
    print(options.EXAMPLE_LIMIT)
try:
    Context(EXAMPLE_LIMIT=0)
except Exception as error:
    print("an integer of at least 1" in str(error))
"""
    assert run(package.parent, "-c", program).split() == ["3", "5", "True"]
    assert run(package.parent, "-c", program, EXAMPLE_LIMIT="7").split() == ["7", "5", "True"]
    page = run(package.parent, "-m", "tilewright.base.config")
    assert "| `EXAMPLE_LIMIT` | int | `3` | An example. |" in page


RUN_OP = """
import numpy as np
from tilewright import Context, Tensor, jit
from tilewright.debug import explain
from tilewright.graph.ops import Ops
from tilewright.graph.text.parse import parse
from tilewright.graph.text.show import show

values = [-2.5, -2.0, -0.5, -0.0, 0.0, 0.25, 3.75, 1e4, float("inf"), float("-inf"), float("nan")]
for dtype in ("float16", "float32", "float64"):
    wanted = np.floor(np.array(values, dtype=dtype))
    for device in ("CPU", "PYTHON"):
        found = Tensor(values, dtype=dtype, device=device).floored().numpy()
        assert np.array_equal(found, wanted, equal_nan=True) and found.dtype == wanted.dtype, (device, found)
x = Tensor([-1.5, 2.5], requires_grad=True)
(x.floored() * x).sum().backward()
assert x.grad.tolist() == [-2.0, 2.0]
step = jit(lambda y: (y.floored() + 1).sum())
assert [step(Tensor([0.5, -0.5])).item() for _ in range(4)] == [1.0] * 4 and step.last_reason == ""
y = Tensor([1.5, 2.5, 3.5]).realize() * 2
assert "llvm.floor" in explain(y.floored()).kernels[0].source
with Context(DEVICE="NULL"):
    assert "floor" in explain(Tensor.empty(64).floored()).kernels[0].source
node = x.floored().uop
assert any(found.op is Ops.FLOOR for found in (node, *node.src)) and parse(show(node)) is node
print("right")
"""


def test_an_op_is_a_spec_and_a_method(package: Path) -> None:
    spec, method = examples_of(OP_PAGE)
    insert_line(package / "graph" / "ops.py", "\n    # two operands\n", spec)
    insert_line(package / "tensor" / "primitives" / "elementwise.py", "    def sign(self)", method + "\n")
    assert changed_files(package) == files_named("a scalar op")
    assert run(package.parent, "-W", "error", "-c", RUN_OP, VERIFY_GRAPH="1").split() == ["right"]
