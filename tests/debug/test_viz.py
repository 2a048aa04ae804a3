"""The web view without a browser: one document that loads nothing and that no text of a program can break, served to
this machine alone. `test_viz_browser.py` looks at it in chromium."""

from __future__ import annotations

import dataclasses
import http.client
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tests.debug.graphs import random_trace
from tilewright import Tensor
from tilewright.cli.main import app
from tilewright.cli.viz import PageServer
from tilewright.debug.chrome import write_profile
from tilewright.debug.trace import Recorder, Trace, write_trace
from tilewright.debug.trace.encode import from_values
from tilewright.debug.trace.records import Run, Timeline
from tilewright.debug.viz import SCRIPTS, Roof, read_file, trace_page

HOSTILE = "</script><script>window.hurt=1</script><!-- /*SCRIPT*/ /*DATA*/ \u2028 &amp; <img src=x onerror=hurt()>"


@pytest.fixture(scope="module")
def trace() -> Trace:
    with Recorder() as recorder:
        (Tensor([[1.0, 2.0], [3.0, 4.0]]) @ Tensor([[1.0], [2.0]])).relu().tolist()
    return recorder.trace("program.py", "finished")


def data_of(page: str) -> object:
    (found,) = re.findall(r'<script id="data" type="application/json">(.*?)</script>', page, re.DOTALL)
    return json.loads(found)


def test_the_page_holds_the_trace(trace: Trace) -> None:
    page = trace_page(trace, {"CPU": Roof(1e9, 2e9)})
    values = data_of(page)
    assert isinstance(values, dict)
    assert from_values(values["trace"]) == trace
    assert values["peaks"] == {"CPU": {"operations": 1e9, "bandwidth": 2e9}}


def test_it_loads_nothing(trace: Trace) -> None:
    page = trace_page(trace)
    assert re.findall(r'(?:src|href)="(?!#|data:)([^"]*)"', page) == []
    assert "fetch(" not in page
    assert "innerHTML" not in "".join(map(read_file, SCRIPTS)), "text reaches the document as text alone"
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', page)
    assert "default-src 'none'" in policy
    assert "script-src 'sha256-" in policy
    assert "connect-src" not in policy


def test_no_text_ends_its_element(trace: Trace) -> None:
    kernel = dataclasses.replace(trace.kernels[0], name=HOSTILE, source=HOSTILE)
    hostile = dataclasses.replace(trace, program=HOSTILE, outcome=HOSTILE, kernels=(kernel,))
    page = trace_page(hostile)
    assert page.count("<script") == trace_page(trace).count("<script")
    values = data_of(page)
    assert isinstance(values, dict)
    assert from_values(values["trace"]) == hostile
    assert "<img" not in page.replace(read_file("page.css"), "")


def test_a_large_graph_is_a_small_page() -> None:
    assert len(trace_page(random_trace(5000))) < 1_500_000


# ---------------------------------------------------------------- the server


@pytest.fixture
def server() -> Iterator[PageServer]:
    made = PageServer("<html>the page</html>")
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.shutdown()
    made.server_close()
    thread.join()


def ask(server: PageServer, path: str, host: str, method: str = "GET") -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=10)
    connection.request(method, path, headers={"Host": host})
    response = connection.getresponse()
    text = response.read().decode()
    connection.close()
    return response.status, text


def test_one_page_for_this_machine(server: PageServer) -> None:
    port = server.server_address[1]
    assert server.server_address[0] == "127.0.0.1"
    assert ask(server, "/", f"127.0.0.1:{port}") == (200, "<html>the page</html>")
    assert ask(server, "/?x=1", f"localhost:{port}")[0] == 200
    assert ask(server, "/../etc/passwd", f"localhost:{port}")[0] == 404
    assert ask(server, "/", "evil.example:80")[0] == 403
    assert ask(server, "/", "evil.example")[0] == 403
    assert ask(server, "/", f"localhost:{port}", "POST")[0] == 501


# ---------------------------------------------------------------- the command


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["viz", *arguments])


def test_a_trace_a_profile_and_a_script(trace: Trace, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    write_trace(trace, tmp_path / "trace.json")
    assert invoke(str(tmp_path / "trace.json"), "--html", str(page)).exit_code == 0
    assert trace.kernels[0].name in page.read_text()
    run = Run("kernel", "from a profile", "CPU", 5, 10, 1, 8, None, "MainThread", None, None)
    write_profile(Timeline("p.py", (run,), (), (), ()), tmp_path / "profile.json")
    assert invoke(str(tmp_path / "profile.json"), "--html", str(page)).exit_code == 0
    assert "from a profile" in page.read_text()
    (tmp_path / "script.py").write_text(
        "from tilewright import Tensor\n(Tensor([1, 2]) * 7).tolist()\nraise SystemExit(4)\n"
    )
    assert invoke(str(tmp_path / "script.py"), "--html", str(page)).exit_code == 4
    assert "p0[L0] = p1[L0]*7" in page.read_text()
    written = CliRunner().invoke(app, ["trace", str(tmp_path / "script.py"), "--html", str(tmp_path / "trace.html")])
    assert written.exit_code == 4
    assert "p0[L0] = p1[L0]*7" in (tmp_path / "trace.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((), "nothing to show"),
        (("nowhere.json",), "nowhere.json cannot be read"),
        (("nowhere.py",), "there is no script"),
    ],
)
def test_mistakes_are_told(arguments: tuple[str, ...], complaint: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert complaint in result.stderr
