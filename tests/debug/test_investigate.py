"""The parts of an investigation, each by itself: what a step changes, how graphs and programs are made smaller, how
outputs are checked, what an observation moves to the front, what is known of a failure."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tilewright import Context, Tensor
from tilewright.base.dtype import dtypes
from tilewright.debug import dump, load_repro, replay
from tilewright.debug.investigate.bisect import fused_nodes
from tilewright.debug.investigate.equivalence import compare_nodes, interpret_kernel
from tilewright.debug.investigate.gradient_audit import check_gradient
from tilewright.debug.investigate.item_runner import are_values_right, held_versions, known_loads
from tilewright.debug.investigate.process import Ended
from tilewright.debug.investigate.program_reduce import reduce_program
from tilewright.debug.investigate.reduce import reduce_repro
from tilewright.debug.investigate.report import program_test, repro_test
from tilewright.debug.investigate.scenarios import order_by_observations
from tilewright.debug.investigate.steps import examine
from tilewright.debug.investigate.switches import SWITCHES
from tilewright.debug.investigate.target import compare_output, failure_of, make_target
from tilewright.debug.memory import SessionStore, known_like, signature_of
from tilewright.debug.replay import contents_of, expected_values, steady_values
from tilewright.engine.compilation.difference import find_difference
from tilewright.graph import build
from tilewright.graph.ops import AxisType, Ops, ParamArg
from tilewright.graph.passes import run_passes
from tilewright.graph.uop import UOp, const
from tilewright.graph.walk import toposort
from tilewright.kernel.axes import make_range
from tilewright.runtime.device import open_driver
from tilewright.schedule.pipeline import PASSES as SCHEDULE_PASSES
from tilewright.schedule.pipeline import Scheduling

DATA = (np.arange(240, dtype=np.float32).reshape(12, 20) % 7) - 3


def make_repro(tmp_path: Path):  # type: ignore[no-untyped-def]
    x = Tensor(DATA).realize()
    y = (x * 2 + 1).relu().sum(1)
    return load_repro(str(dump(tmp_path / "a.repro", ((x + 3) / 4 + y.reshape(12, 1)).softmax(1).sum(0), x.exp())))


def loaded(size: int = 8) -> UOp:
    memory = UOp(Ops.PARAM, dtypes.float32, (), ParamArg(1, size))
    index = UOp(Ops.INDEX, dtypes.float32, (memory, make_range(size, (0,), AxisType.LOOP)))
    return UOp(Ops.LOAD, dtypes.float32, (index,))


def test_what_a_rewrite_changes() -> None:
    x = loaded()
    four, half, quarter = (const(dtypes.float32, value) for value in (4.0, 0.5, 0.25))
    divided = UOp(Ops.FDIV, dtypes.float32, (x, four))
    assert compare_nodes(divided, UOp(Ops.MUL, dtypes.float32, (x, quarter))) is None
    found = compare_nodes(divided, UOp(Ops.MUL, dtypes.float32, (x, half)))
    assert found is not None
    assert found.got == 2 * found.want
    i = make_range(20, (0,), AxisType.LOOP)
    assert compare_nodes(i % 12, i) is not None
    assert compare_nodes(i % 20, i) is None


def test_a_kernel_is_interpreted_and_left_alone() -> None:
    out = UOp(Ops.PARAM, dtypes.float32, (), ParamArg(0, 8))
    place = UOp(Ops.INDEX, dtypes.float32, (out, make_range(8, (0,), AxisType.LOOP)))
    sink = UOp(Ops.SINK, dtypes.void, (UOp(Ops.STORE, dtypes.void, (place, loaded() + 1.0)),))
    arrays = {0: np.zeros(8, np.float32), 1: np.arange(8, dtype=np.float32)}
    written = interpret_kernel(sink, arrays)
    assert written is not None
    assert written[0].tolist() == (np.arange(8) + 1).tolist()
    assert not arrays[0].any()


def test_right_steps_are_not_blamed(tmp_path: Path) -> None:
    assert examine(make_repro(tmp_path)) is None


def test_a_schedule_in_parts_is_not_blamed(tmp_path: Path) -> None:
    """Kernels that load slices of stored values: each written value is that of its node."""
    x = Tensor(DATA).realize()
    rows = ((x * 2).contiguous()[3:9] + 1).sum(1)
    repro = load_repro(str(dump(tmp_path / "a.repro", rows, x[:, 4:8].exp().sum(0))))
    with Context(CACHE=0):
        params = sorted((n for n in toposort(repro.graph) if n.op is Ops.PARAM), key=lambda n: n.arg.slot)
        state = Scheduling(repro.graph.src, params, "CPU", frozenset(), lambda device: open_driver(device).target)
        run_passes("schedule", SCHEDULE_PASSES, state)
    held = held_versions(state, contents_of(repro), {})
    assert any(part.start for parts in state.builder.loaded.values() for part in parts)
    assert are_values_right(state, held, {})
    wrong = {node: data + 1 if node.op is Ops.PARAM else data for node, data in held.items()}
    assert not are_values_right(state, wrong, {})
    assert all(known_loads(state, held))


def test_elements_that_depend_on_the_order_of_a_sum_are_not_compared(tmp_path: Path) -> None:
    """The last row is 7 in every order; what is left of the others is rounding."""
    terms = np.ones((4, 8), np.float32)
    terms[:3, 2], terms[:3, 5] = 1e8, -1e8
    repro = load_repro(str(dump(tmp_path / "a.repro", Tensor(terms).realize().sum(1))))
    assert [mask.tolist() for mask in steady_values(repro, expected_values(repro))] == [[False, False, False, True]]
    assert replay(repro).agrees
    right = terms.sum(1)
    assert find_difference(right + 1, right, dtypes.float32, mask=np.array([False, False, False, True])).position == 3  # type: ignore[union-attr]


def test_a_graph_is_reduced(tmp_path: Path) -> None:
    repro = make_repro(tmp_path)

    def divides_by_four(candidate) -> bool:  # type: ignore[no-untyped-def]
        order = toposort(candidate.graph)
        return any(node.op is Ops.FDIV and node.src[1].is_const and node.src[1].arg == 4.0 for node in order)

    small = reduce_repro(repro, divides_by_four, 60.0)
    assert divides_by_four(small)
    assert small.nodes <= 4
    assert all(given.size == 1 for given in small.inputs)
    assert replay(small).agrees


def test_fused_operations_are_counted_in_order(tmp_path: Path) -> None:
    x = Tensor(DATA).realize()
    repro = load_repro(str(dump(tmp_path / "a.repro", x.assign(x.flip(0) * 2 + 1))))
    assert [(node.op.name, user and user.op.name) for node, user in fused_nodes(repro)] == [
        ("MUL", "ADD"),
        ("ADD", "ASSIGN"),
    ]


@pytest.mark.parametrize("op", [Ops.SQRT, Ops.EXP2, Ops.SIN, Ops.LOG2, Ops.NEG])
def test_gradient_rules_hold(op, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    leaf = build.reshape(UOp(Ops.PARAM, dtypes.float32, (), ParamArg(0, 6)), (2, 3))
    node = UOp(op, dtypes.float32, (leaf,))
    assert check_gradient(node) is None
    inner = op.gradient
    monkeypatch.setattr(
        op, "gradient", lambda m, g, y, *s: tuple(m.multiply(r, m.number(g, 2)) for r in inner(m, g, y, *s))
    )
    found = check_gradient(node)
    assert found is not None
    assert (found.kind, found.name) == ("gradient", op.name)


def test_a_program_is_reduced() -> None:
    text = "import os\na = 1\nb = 2\ndef f(x):\n    y = x + 1\n    z = 3\n    return y\nc = f(a)\nassert c == 3\n"

    def fails(candidate: str) -> bool:
        try:
            exec(compile(candidate, "program", "exec"), {})
        except AssertionError:
            return True
        except Exception:
            return False
        return False

    small = reduce_program(text, fails, 30.0)
    assert fails(small)
    assert "import os" not in small
    assert "z = 3" not in small
    assert "b = 2" not in small
    assert "a = 1" in small


def ended(status: int = 0, output: str = "", errors: str = "", ending: str = "finished") -> Ended:
    return Ended(ending, status, output, errors, 1.0)


def test_outputs_are_compared() -> None:
    assert compare_output("loss 0.12345 at 3\n", "loss 0.12346 at 3\n") == ""
    assert "0.2 instead of 0.1" in compare_output("loss 0.2", "loss 0.1")
    assert compare_output("a", "b") == "the output is another text"
    assert compare_output("nan inf", "nan inf") == ""
    assert failure_of(ended(output="1.0"), ended(output="1.0")).kind == ""
    assert failure_of(ended(output="1.0"), ended(output="2.0")).kind == "other output"
    assert failure_of(ended(output="1.0"), ended(1)).kind == ""
    assert failure_of(ended(1, errors="Traceback\nValueError: no\n"), None).kind == "ValueError"
    assert failure_of(ended(-11, ending="crash"), None).text == "crashed with SIGSEGV"


def test_a_test_that_passes_prints_the_same_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What pytest says of how long it took is no difference."""
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    test = tmp_path / "test_a.py"
    test.write_text(
        "import time\nimport pytest\n@pytest.fixture\ndef half():\n    return 0.5\n"
        "@pytest.mark.parametrize('a', [1, 'b-c'])\ndef test_it(a, half):\n    time.sleep(half if a == 1 else 0)\n"
    )
    command = make_target([f"{test}::test_it[1]"]).command
    first = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    second = subprocess.run([*command[:-1], f"{test}::test_it[b-c]"], capture_output=True, text=True, cwd=tmp_path)
    outcomes = [ended(run.returncode, run.stdout, run.stderr) for run in (first, second)]
    assert [outcome.is_success for outcome in outcomes] == [True, True]
    assert failure_of(*outcomes).kind == ""


def test_a_regression_test_of_a_script_with_arguments_and_modules(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("limit = 3\n")
    program = "import sys\nfrom beside import limit\nassert int(sys.argv[1]) < limit\nassert __file__\n"
    test = tmp_path / "test_regression.py"
    for number, status in (("2", 0), ("3", 1)):
        test.write_text(program_test(None, program, {}, [number], str(tmp_path)))
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(test)]
        assert subprocess.run(command, capture_output=True, cwd=tmp_path).returncode == status


def test_observations_reorder() -> None:
    names = [switch.name for switch in order_by_observations(SWITCHES, [])]
    assert names == [switch.name for switch in SWITCHES]
    assert order_by_observations(SWITCHES, ["it passes with FUSE=0."])[0].name == "fusion"
    assert order_by_observations(SWITCHES, ["it fails with CACHE=0"])[-1].name == "cache"
    assert order_by_observations(SWITCHES, ["I think it is the memory"])[0].name == "memory"


def test_targets(tmp_path: Path) -> None:
    script = tmp_path / "a.py"
    script.write_text("")
    assert make_target([str(script), "-x"]).kind == "script"
    assert make_target([f"{script}::test_a"]).kind == "test"
    assert make_target(["python", "-m", "pytest", "x.py"]).words == ("x.py",)
    assert make_target(["python", "-m", "a.b", "-x"]).command[1:] == ["-m", "a.b", "-x"]
    with pytest.raises(Exception, match="does not exist"):
        make_target([str(tmp_path / "b.py")])
    with pytest.raises(Exception, match="nothing was named"):
        make_target([])


def test_a_failure_that_is_known(tmp_path: Path) -> None:
    first = signature_of("AssertionError", "AssertionError: 1.5 at /tmp/a.py", ["ADD", "MUL"])
    assert first == signature_of("AssertionError", "AssertionError: 2.5 at /tmp/b.py", ["MUL", "ADD", "ADD"])
    assert first != signature_of("AssertionError", "AssertionError: 1.5 at /tmp/a.py", ["ADD"])
    store = SessionStore.create(tmp_path, {"command": ["a.py"]})
    hypothesis = {
        "name": "jit",
        "question": "q",
        "verdict": "refuted",
        "evidence": "e",
        "settings": "JIT=0",
        "seconds": 1,
    }
    store.add_hypothesis(hypothesis)
    assert known_like(tmp_path, first, "other") == []
    store.update(signature=first, guilty={"kind": "rule", "name": "add-zero"})
    assert known_like(tmp_path, first, "other") == [{"id": store.id, "guilty": {"kind": "rule", "name": "add-zero"}}]
    assert known_like(tmp_path, first, store.id) == []
    assert sorted(path.suffix for path in store.folder.glob("01-jit.*")) == [".json", ".md"]


def test_regression_tests_are_programs() -> None:
    guilty = {"kind": "rule", "name": "divide-by-power-of-two"}
    for text in (
        repro_test(guilty, 'tilewright repro 1\nliteral "a\\n" \n'),
        repro_test(None, "tilewright repro 1\n"),
        program_test(guilty, 'print(\'\\n\', """x""")\n', {"JIT": "0"}),
    ):
        compile(text, "test", "exec")
    assert "def test_rule_divide_by_power_of_two(tmp_path: Path) -> None:" in repro_test(guilty, "")
