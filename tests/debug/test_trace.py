"""`tilewright trace`: what it records is what happened, with names, reasons, places and lines that are there; it keeps
to its limits and says so; the JSON reads back; and nothing is left behind when it ends."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
import threading
from itertools import pairwise
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tilewright import Tensor, jit
from tilewright.base import events
from tilewright.base.config import options
from tilewright.base.errors import FileError
from tilewright.cli.main import app
from tilewright.debug.trace import Limits, LineRecorder, Recorder, Trace, read_trace, trace_text, write_trace
from tilewright.debug.trace.encode import from_values, to_json
from tilewright.debug.trace.records import Call, Pass, reachable

ROOT = Path(__file__).resolve().parents[2]


def record(work: object, limits: Limits | None = None) -> Trace:
    assert callable(work)
    with Recorder(limits) as recorder:
        work()
    return recorder.trace("program", "finished")


def add_two() -> None:
    assert (Tensor([1, 2, 3]) + 2).tolist() == [3, 4, 5]


def add_number(number: int) -> None:
    (Tensor([float(number)] * number) + number).tolist()


def softmax_of_product() -> None:
    left, right = Tensor.ones(24, 16).contiguous().realize(), Tensor.ones(16, 70).contiguous().realize()
    (left @ right).softmax(1).realize()


def all_passes(trace: Trace) -> list[Pass]:
    owners = [step.passes for step in trace.steps] + [kernel.passes for kernel in trace.kernels]
    return [made for passes in owners for made in passes]


# ---------------------------------------------------------------- what is recorded


def test_a_sum_from_its_line_to_machine_code() -> None:
    trace = record(add_two)
    (step,) = trace.steps
    (kernel,) = trace.kernels
    (run,) = trace.runs
    (line,) = trace.lines
    assert line.text == "assert (Tensor([1, 2, 3]) + 2).tolist() == [3, 4, 5]"
    assert line.ops == ("ADD", "CONST")
    assert (line.steps, line.kernels, line.runs) == ((0,), (0,), 1)
    assert step.line == kernel.line == run.line == line.line
    graph = [step.nodes[number] for number in reachable(step.roots, step.nodes)]
    assert [node.op for node in graph] == ["PARAM", "CONST", "ADD"]
    assert graph[-1].line == line.line
    assert [item.kernel for item in step.items] == [0]
    decisions = {decision.choice: decision.reason for made in all_passes(trace) for decision in made.decisions}
    assert decisions["store ADD int32[3]"] == "it is an output"
    assert kernel.opts == ("UPCAST(0, 3)",)
    assert "stride 1 in 2 of 2 accesses" in decisions["UPCAST(0, 3)"]
    assert kernel.expression == "p0[L0] = p1[L0] + 2"
    assert "add <3 x i32>" in kernel.source or "+" in kernel.source
    assert "ret" in kernel.assembly
    assert run.name == kernel.name
    assert run.duration > 0
    assert {"kernel", "codegen", "render", "compile"} <= dict(kernel.stages).keys()
    assert trace.memory[-1].allocated > 0


def test_rules_have_their_nodes_and_their_lines_in_the_package() -> None:
    trace = record(softmax_of_product)
    rules = [(kernel, rule) for kernel in trace.kernels for made in kernel.passes for rule in made.rules]
    assert len({rule.name for _, rule in rules}) > 3
    for kernel, rule in rules:
        assert rule.before != rule.after
        assert rule.nodes is not None
        before, after = rule.nodes
        assert kernel.nodes[before] != kernel.nodes[after]
        assert rule.place is not None, rule.name
        file, number = rule.place
        assert f'"{rule.name}"' in (ROOT / file).read_text().splitlines()[number - 1]


def test_a_pass_that_changed_the_graph_has_other_nodes() -> None:
    trace = record(softmax_of_product)
    for kernel in trace.kernels:
        graphs = [kernel.roots, *(made.roots for made in kernel.passes)]
        for made, before in zip(kernel.passes, graphs, strict=False):
            assert made.is_changed == (before != made.roots)
            assert bool(made.text) == made.is_changed
        last = {kernel.nodes[number].op for number in reachable(graphs[-1], kernel.nodes)}
        assert "REDUCE" not in last or "RANGE" in last
    named = {f"{made.stage}/{made.name}" for made in all_passes(trace)}
    assert {"schedule/fuse_kernels", "kernel/apply_opts", "codegen/linearise"} <= named


def test_lines_are_those_of_the_caller() -> None:
    def work() -> None:
        x = Tensor([1.0, 2.0]).realize()
        y = Tensor([3.0, 4.0]).realize()
        (x * 5).realize()
        (y * 5).realize()

    trace = record(work)
    first, second = [step for step in trace.steps if step.items]
    assert (first.line, second.line) == (first.items[0].line, second.items[0].line)
    assert first.line is not None
    assert second.line == (first.line[0], first.line[1] + 1)
    assert [(line.line, line.ops, line.runs) for line in trace.lines] == [
        (first.line, ("MUL", "CONST"), 1),
        (second.line, ("MUL", "CONST"), 1),
    ]


def test_why_a_value_is_stored() -> None:
    trace = record(softmax_of_product)
    reasons = {d.choice: d.reason for made in all_passes(trace) for d in made.decisions}
    assert "several places of one" in reasons["store REDUCE_AXIS float32[24, 70, 1]"]
    assert "costs less than a store" in reasons["fuse EXP2 float32[24, 70]"]


def test_what_the_process_has_compiled_is_shown_all_the_same() -> None:
    add_two()
    first = record(add_two)
    assert first.steps[0].passes
    assert first.kernels[0].passes
    assert dict(first.kernels[0].stages)["compile"] > 0
    traces = [record(softmax_of_product) for _ in range(2)]
    rules = [[rule.name for made in all_passes(trace) for rule in made.rules] for trace in traces]
    assert len(rules[0]) > 5
    assert rules[0] == rules[1], "what a rule made of a node is known, and told again"


def test_an_equal_graph_refers_to_the_first() -> None:
    x = Tensor([1.0, 2.0]).realize()
    trace = record(lambda: [(x * 3).realize() for _ in range(3)])
    assert [step.same_as for step in trace.steps] == [None, 0, 0]
    assert [len(step.nodes) > 0 for step in trace.steps] == [True, False, False]
    assert [run.step for run in trace.runs] == [0, 1, 2]
    assert len(trace.kernels) == 1
    assert "the graph is that of step 0" in trace_text(trace, 2)


def test_replays_are_seen_and_happen() -> None:
    @jit
    def doubled(x: Tensor) -> Tensor:
        return (x * 2).realize()

    x = Tensor([1.0, 2.0, 3.0]).realize()
    trace = record(lambda: [doubled(x) for _ in range(5)])
    replays = [run for run in trace.runs if run.kind == "replay"]
    assert len(replays) == 3, "watching a function does not keep it from being replayed"
    (doubling,) = [kernel.name for kernel in trace.kernels if kernel.expression == "p0[L0] = p1[L0]*2.0"]
    assert {run.names for run in replays} == {(doubling,)}
    assert all(run.line is not None and run.line[0] == __file__ for run in replays)


def test_threads_are_told_apart() -> None:
    def work() -> None:
        threads = [threading.Thread(target=add_number, args=(n,), name=f"worker {n}") for n in (5, 6, 7)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    trace = record(work)
    assert {step.thread for step in trace.steps} == {"worker 5", "worker 6", "worker 7"}
    for step in trace.steps:
        (item,) = step.items
        assert item.kernel is not None
        assert trace.kernels[item.kernel].step == step.number
        assert f"float32[{step.thread[-1]}]" in item.reads[0]


def test_limits_are_kept_and_told() -> None:
    limits = Limits(steps=2, kernels=1, runs=2, rules=1, nodes=10, text=200, expression=20, assembly=False)
    trace = record(softmax_of_product, limits)
    assert (len(trace.steps), len(trace.kernels), len(trace.runs)) == (2, 1, 2)
    assert max(len(made.rules) for made in all_passes(trace)) <= 1
    assert all(len(owner.nodes) <= 10 for owner in (*trace.steps, *trace.kernels))
    told = "\n".join(trace.notes)
    for what in ("steps", "kernels", "runs", "nodes"):
        assert f" {what} are not recorded" in told
    assert trace.kernels[0].assembly == "(not recorded)"
    assert "more characters" in trace.kernels[0].source
    assert trace_text(trace, 5)


def test_nothing_is_left_behind() -> None:
    before = options.CACHE
    record(add_two)
    assert events.listeners == {}
    assert before == options.CACHE
    with pytest.raises(ZeroDivisionError), Recorder(), LineRecorder():
        raise ZeroDivisionError
    assert events.listeners == {}
    assert sys.gettrace() is None


# ---------------------------------------------------------------- lines of the package


def functions_of(call: Call) -> list[str]:
    inner = [name for line in call.lines for each in line.calls for name in functions_of(each)]
    return [call.function, *inner]


def test_the_lines_of_the_package_by_call() -> None:
    with Recorder() as recorder, LineRecorder() as lines:
        add_two()
    trace = recorder.trace("program", "finished", lines.calls(), lines.notes())
    functions = [functions_of(call) for call in trace.calls]
    asked = [call.function for call in trace.calls if call.caller is not None and call.caller[0] == __file__]
    assert asked[0] == "Tensor.__init__"
    assert any(name.endswith("tolist") for name in asked)
    assert any("schedule" in names and "optimise" in names and "lower" in names for names in functions)
    first = trace.calls[0]
    source = (ROOT / first.file).read_text().splitlines()
    for line in first.lines:
        assert source[line.number - 1].strip() == line.text.strip()
    text = trace_text(trace, 1)
    assert "lines of the package that ran, by call" in text
    assert "tilewright/schedule/fusion/fuse.py" in text
    assert "tilewright/debug/" not in text.partition("lines of the package")[2]


def test_lines_beyond_the_limit_are_counted() -> None:
    with LineRecorder(Limits(source_lines=50)) as lines:
        add_two()
    assert 50 <= lines.recorded < 200
    (note,) = lines.notes()
    assert "further calls" in note


# ---------------------------------------------------------------- JSON


def test_json_reads_back(tmp_path: Path) -> None:
    trace = dataclasses.replace(record(softmax_of_product), outcome='raised ValueError: "</script>" \ud800')
    path = tmp_path / "trace.json"
    write_trace(trace, path)
    found = read_trace(path)
    assert dataclasses.replace(found, outcome=trace.outcome) == trace
    assert from_values(json.loads(to_json(trace))) == trace


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "is not JSON"),
        ("[1, 2]", "is not a trace of format"),
        ('{"format": 99}', "but of 99"),
        ('{"format": 1}', "is not a Trace"),
        ("{" * 100_000, "is not JSON"),
    ],
)
def test_another_file_is_refused(text: str, complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(text)
    with pytest.raises(FileError, match=complaint):
        read_trace(path)


def test_a_wrong_field_is_named() -> None:
    values = json.loads(to_json(record(add_two)))
    values["steps"][0]["items"][0]["kernel"] = "first"
    with pytest.raises(FileError, match=r"steps\[0\].items\[0\].kernel"):
        from_values(values)


# ---------------------------------------------------------------- the command


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["trace", *arguments])


SCRIPT = """
import sys
from tilewright import Tensor

print("given", sys.argv[1:])
print((Tensor([1.0, 2.0]) * 3).tolist())
{end}
"""


@pytest.mark.parametrize(
    ("end", "status", "outcome"),
    [
        ("", 0, "finished"),
        ("sys.exit(3)", 3, "exited with status 3"),
        ("sys.exit('enough')", 1, "exited: enough"),
        ("raise ValueError('a <b> & [red]')", 1, "raised ValueError: a <b> & [red]"),
        ("raise KeyboardInterrupt", 130, "interrupted"),
    ],
)
def test_a_program_is_traced_however_it_ends(end: str, status: int, outcome: str, tmp_path: Path) -> None:
    script, values = tmp_path / "program.py", tmp_path / "trace.json"
    script.write_text(SCRIPT.format(end=end))
    result = invoke(str(script), "a", "--depth", "3", "--json", str(values), "--", "--b")
    assert result.exit_code == status, result.output
    assert "given ['a', '--b']" in result.stdout
    assert f": {outcome} after" in result.stdout
    assert "program.py:6  print((Tensor([1.0, 2.0]) * 3).tolist())" in result.stdout
    assert "store MUL float32[2]: it is an output" in result.stdout
    found = read_trace(values)
    assert found.outcome == outcome
    assert [kernel.expression for kernel in found.kernels] == ["p0[L0] = p1[L0]*3.0"]


def test_the_page_shows_a_true_trace(tmp_path: Path) -> None:
    """All but the numbers and the lines: another test may have made the same nodes before."""
    page = (Path(__file__).parents[2] / "docs/trace.md").read_text()
    shown = page.split("```text\n")[1].split("```")[0]
    script = tmp_path / "program.py"
    script.write_text("from tilewright import Tensor\nprint((Tensor([1, 2, 3]) + 2).tolist())\n")
    found = invoke(str(script)).stdout.split("\n\n", 1)[1]

    def words(text: str) -> list[str]:
        lines = [re.sub(r" +\[tilewright/.*", "", line) for line in text.strip().splitlines()]
        return [re.sub(r"[\d.]+ (?:[num]?s|GB/s)|\S+\.py:\d+", "n", line) for line in lines]

    assert words(found) == words(shown)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((), "nothing to run"),
        (("nowhere.py",), "there is no script nowhere.py"),
        (("-m", "no.such.module"), "there is no module 'no.such.module'"),
    ],
)
def test_mistakes_are_told(arguments: tuple[str, ...], complaint: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert complaint in result.stderr


def test_depth_adds_and_never_takes_away(tmp_path: Path) -> None:
    trace = record(softmax_of_product)
    texts = [trace_text(trace, depth).splitlines() for depth in range(1, 6)]
    for less, more in pairwise(texts):
        assert len(less) < len(more)
        assert set(less) - set(more) == set()
    assert any(line.strip().startswith("+ %") for line in texts[4])
    assert not any(line.strip().startswith("+ %") for line in texts[3])
