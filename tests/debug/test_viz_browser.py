"""The web view in a real browser: Debian's chromium, driven by Playwright.

Slow, and skipped where the browser or Playwright is missing: `apt-get install chromium`, `pip install playwright`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser import MARKS, started_browser
from tests.debug.graphs import random_trace
from tests.debug.test_viz import HOSTILE
from tilewright import Tensor, jit
from tilewright.debug.trace import LineRecorder, Recorder, Trace
from tilewright.debug.viz import Roof, write_page

pytestmark = MARKS
NODES = 5000
# What moving takes: the time of the script in each frame, which the load of the machine changes least.
FRAMES = """async () => {
  const view = window.tilewright.graph;
  const spent = [];
  for (let frame = 0; frame < 60; frame++) {
    view.offset.x += (6 / view.scale) * Math.cos(frame / 9);
    if (frame >= 30) view.zoom(frame < 45 ? 1.05 : 1 / 1.05, 500, 400);
    const start = performance.now();
    view.draw();
    spent.push(performance.now() - start);
    await new Promise(requestAnimationFrame);
  }
  spent.sort((one, other) => one - other);
  return { median: spent[30], most: spent[59], frames: view.frames, drawings: view.drawings };
}"""


@pytest.fixture(scope="module")
def trace() -> Trace:
    @jit
    def step(x: Tensor) -> Tensor:
        return (x * 3 + 1).sum().realize()

    with Recorder() as recorder, LineRecorder() as lines:
        (Tensor([[1.0] * 16] * 24) @ Tensor([[2.0] * 40] * 16)).relu().softmax(1).realize()
        x = Tensor([1.0, 2.0, 3.0]).realize()
        for _ in range(4):
            step(x)
    return recorder.trace("program.py", "finished", lines.calls(), lines.notes())


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with started_browser() as browser:
        yield browser


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """Whatever the page reports as wrong, or asks another host for, fails the test."""
    context = browser.new_context(viewport={"width": 1200, "height": 800}, color_scheme="light")
    page = context.new_page()
    page.set_default_timeout(30_000)
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.on(
        "request",
        lambda request: complaints.append(request.url) if not request.url.startswith(("file:", "data:")) else None,
    )
    yield page
    context.close()
    assert complaints == []


def show(page: Any, trace: Trace, folder: Path, address: str) -> None:
    path = folder / "page.html"
    write_page(trace, path, {"CPU": Roof(1e11, 3e10)})
    page.goto(f"{path.as_uri()}{address}")
    page.wait_for_function("window.tilewright && window.tilewright.drawn > 0")


def test_the_overview_and_the_way_to_a_kernel(page: Any, trace: Trace, tmp_path: Path) -> None:
    show(page, trace, tmp_path, "#/overview")
    assert page.title() == "program.py: tilewright"
    assert "Lines that made work" in page.inner_text("main")
    page.click(f"nav >> text={trace.kernels[0].name}")
    for tab in ("Opts", "Program", "Source", "Assembly", "Runs", "Passes", "Graph"):
        page.click(f".tabs >> text={tab}")
        assert tab in page.inner_text(".tabs a.here")
    page.click(".tabs >> text=Source")
    assert trace.kernels[0].source.splitlines()[0].split()[0] in page.inner_text("pre")


def test_search_finds(page: Any, trace: Trace, tmp_path: Path) -> None:
    show(page, trace, tmp_path, "#/overview")
    for words, kind in (
        ("it is an output", "decision"),
        ("relu", "line"),
        ("REDUCE_AXIS float32", "node"),
        ("ret", "assembly"),
    ):
        page.fill("#search", words)
        page.wait_for_selector(f"#results a:has(.kind:text-is('{kind}'))")
    page.fill("#search", "nothing at all has this")
    page.wait_for_selector("#results >> text=nothing found")
    rule = next(rule for kernel in trace.kernels for made in kernel.passes for rule in made.rules)
    page.fill("#search", f"rule {rule.name}")
    page.wait_for_selector("#results a:has(.kind:text-is('rule'))")
    page.press("#search", "Enter")
    page.wait_for_selector(f".rule >> text={rule.name}")
    assert page.locator(".rule ins, .rule del").count() > 0


def test_a_click_on_a_node_shows_its_record(page: Any, trace: Trace, tmp_path: Path) -> None:
    show(page, trace, tmp_path, "#/step/0/graph")
    number = trace.steps[0].roots[0]
    node = trace.steps[0].nodes[number]
    place = page.evaluate(
        """(number) => {
          const view = window.tilewright.graph, at = view.layout.index.get(number);
          const box = view.canvas.getBoundingClientRect();
          const x = (view.layout.x[at] - view.offset.x) * view.scale, y = view.layout.y[at] + 18 - view.offset.y;
          return [box.left + x, box.top + y * view.scale];
        }""",
        number,
    )
    page.mouse.click(*place)
    page.wait_for_selector("#detail:not([hidden])")
    record = page.inner_text("#detail")
    assert node.op in record
    assert node.dtype in record
    assert node.line is not None
    assert f"test_viz_browser.py:{node.line[1]}" in record
    page.click("#detail a >> nth=0")
    page.wait_for_function(f"!document.querySelector('#detail').innerText.includes('%{number},')")


def test_passes_show_what_they_changed(page: Any, trace: Trace, tmp_path: Path) -> None:
    kernel = trace.kernels[0]
    number = next(at for at, made in enumerate(kernel.passes) if made.name == "apply_opts")
    show(page, trace, tmp_path, f"#/kernel/0/passes/{number}")
    assert page.locator(".diff .plus").count() > 1
    assert page.locator(".diff .minus").count() > 1
    assert "kernel/apply_opts" in page.inner_text("main")


def test_timeline_roofline_and_lines(page: Any, trace: Trace, tmp_path: Path) -> None:
    show(page, trace, tmp_path, "#/timeline")
    rows = page.evaluate("window.tilewright.timeline.rows.map((row) => [row.kind, row.name, row.bars.length])")
    kinds = {kind for kind, _, _ in rows}
    assert kinds == {"thread", "queue"}
    assert sum(count for kind, _, count in rows if kind == "queue") == sum(run.kind != "replay" for run in trace.runs)
    page.goto(page.url.partition("#")[0] + "#/roofline")
    page.wait_for_selector("svg circle")
    names = {run.name for run in trace.runs if run.kind == "kernel"}
    assert page.locator("svg circle").count() == len(names)
    page.goto(page.url.partition("#")[0] + "#/calls")
    page.click("summary >> nth=0")
    page.wait_for_selector("details[open] .row")


def test_light_and_dark(page: Any, trace: Trace, tmp_path: Path) -> None:
    show(page, trace, tmp_path, "#/overview")
    colour = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(colour)
    page.click("#theme")
    assert page.evaluate(colour) != light
    page.reload()
    assert page.evaluate(colour) != light, "the choice is kept"


def test_text_of_a_program_stays_text(page: Any, trace: Trace, tmp_path: Path) -> None:
    kernels = tuple(
        dataclasses.replace(kernel, name=HOSTILE, source=HOSTILE, expression=HOSTILE) for kernel in trace.kernels
    )
    hostile = dataclasses.replace(trace, program=HOSTILE, notes=(HOSTILE,), kernels=kernels)
    show(page, hostile, tmp_path, "#/overview")
    for address in ("#/kernel/0/opts", "#/kernel/0/source", "#/kernel/0/graph"):
        page.goto(page.url.partition("#")[0] + address)
        page.wait_for_timeout(100)
    page.fill("#search", "window.hurt")
    page.wait_for_selector("#results a")
    assert page.evaluate("window.hurt") is None
    assert page.locator("img").count() == 0


def test_a_graph_of_5000_nodes(page: Any, tmp_path: Path, record_property: Any) -> None:
    show(page, random_trace(NODES), tmp_path, "#/step/0/graph")
    page.wait_for_function("window.tilewright.graph.drawings > 0")
    opened = page.evaluate("window.tilewright.drawn")
    frames = page.evaluate(FRAMES)
    record_property("opened_ms", opened)
    record_property("frames", frames)
    assert page.evaluate("window.tilewright.graph.numbers.length") == NODES
    assert frames["drawings"] * 5 < frames["frames"], "moving shows what is drawn, and does not draw it again"
    assert opened < 10_000, "2 seconds where nothing else runs"
    page.fill("#search", "%4321")
    page.wait_for_selector("#results a >> text=%4321")
    page.press("#search", "Enter")
    page.wait_for_selector("#detail >> text=%4321")
    overlapping = page.evaluate(
        """() => {
          const { x, y, sizes } = window.tilewright.graph.layout;
          const order = [...x.keys()].sort((a, b) => y[a] - y[b] || x[a] - x[b]);
          const right = (at) => x[at] + sizes[at].width / 2, left = (at) => x[at] - sizes[at].width / 2;
          const overlaps = (one, other) => y[one] === y[other] && right(one) > left(other) + 1e-6;
          return order.filter((at, i) => i && overlaps(order[i - 1], at)).length;
        }"""
    )
    assert overlapping == 0
