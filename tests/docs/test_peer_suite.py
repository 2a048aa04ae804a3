"""`tools.peer_suite`: a test that is written for tinygrad runs under the alias, and what fails is told by its class."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tools.peer_suite.classes import class_of

ROOT = Path(__file__).parents[2]
SUITE = """
import unittest
from tinygrad import Tensor, TinyJit, Variable, dtypes, function, nn
from tinygrad.codegen.late.linearizer import linearize
from tinygrad.helpers import Context, getenv, prod
from tinygrad.nn.state import get_parameters
from tinygrad.uop.ops import Ops, UOp
from test.helpers import check_schedule

class TestIt(unittest.TestCase):
  def test_runs(self):
    step = TinyJit(lambda x: (x * 2).realize())
    for value in range(4): self.assertEqual(step(Tensor([value])).item(), 2 * value)
    with Context(TRAINING=1, DEBUG=0): self.assertTrue(Tensor.training)
    self.assertEqual(prod(get_parameters(nn.Linear(2, 3))[0].shape), getenv("NOBODY_SETS_IT", 6))

  def test_refused_with_another_error(self):
    with self.assertRaisesRegex(ValueError, "their words"): Tensor([1, 2]).reshape(3)

  def test_size(self): self.assertEqual(Tensor.ones(10)[:Variable("n", 1, 10, dtypes.int).bind(3)].sum().item(), 3)
  def test_size_without_a_value(self): Tensor.ones(10)[:UOp.variable("n", 1, 10)]
  def test_scheduled(self):
    check_schedule(out := Tensor([1.0]) + 1, 17)
    self.assertTrue(out.uop.is_realized)
  def test_gradient(self):
    (x := Tensor([3.0])).square().sum().backward()
    self.assertEqual(x.grad.item(), 6)
  def test_pruned(self): TinyJit(lambda x: x, prune=True)
  def test_linear(self): linearize(Tensor([1]))
  def test_sum(self): assert Tensor([1], dtype=dtypes.int32).sum().dtype == dtypes.int32
  def test_wrong(self): self.assertEqual(Tensor([1, 2]).tolist(), [1, 3])
"""


def test_a_suite_is_run_and_its_failures_are_sorted(tmp_path: Path) -> None:
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "__init__.py").touch()
    (tmp_path / "test" / "helpers.py").write_text("check_schedule = None")
    (tmp_path / "test" / "test_it.py").write_text(SUITE)
    (tmp_path / "test" / "test_uop_graph.py").write_text("raise ImportError('a test of the compiler alone')")
    plugins = ["-p", "tools.peer_suite.alias", "-p", "tools.peer_suite.classes", "-p", "no:cacheprovider"]
    # Of this run it inherits neither the worker nor its options, plugins, cache or width.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")} | {
        "PYTHONPATH": f"{ROOT}{os.pathsep}.",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "TILEWRIGHT_CACHE_DIR": str(tmp_path / "cache"),
        "COLUMNS": "120",
    }
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--tb=short", *plugins, "test"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert "classes of failures" in done.stdout, done.stdout + done.stderr
    table = done.stdout.split("classes of failures", 1)[1].splitlines()
    assert "5 failed, 5 passed" in done.stdout, done.stdout
    assert [line for line in table if line[-3:] in (": 1", ": 2") and not line.startswith(" ")] == [
        "feature: 1",
        "design: 2",
        "internal: 1",
        "unknown: 1",
    ], done.stdout
    assert "     1 `jit(prune=)`" in table
    assert any("[1, 3]" in line for line in table)


def test_an_error_that_no_rule_knows_is_unknown() -> None:
    assert class_of("test/unit/test_a.py::TestA::test_b\nE   AssertionError: 1 != 2")[0] == "unknown"
