"""`tilewright mcp` with a real client of the protocol, over stdin and stdout; and hypotheses that a language model
proposes, which count once a scenario has confirmed them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tilewright import Tensor
from tilewright.base.errors import ConfigError, FileError
from tilewright.cli.mcp import TOOLS
from tilewright.debug import dump, sessions
from tilewright.debug.agents import Workbench
from tilewright.debug.investigate.target import make_target
from tilewright.debug.memory import SessionStore
from tilewright.debug.propose import ask, parse_proposals, propose, try_proposals

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import sys
from tilewright import Tensor
print("to stdout", sys.argv[1:])
print((Tensor([1.0, 2.0]) * 3).tolist())
"""
# Wrong with jit, as far as this program is concerned.
FAILING = """
from tilewright.base.config import options
if options.JIT:
    raise ValueError("as planted")
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(SCRIPT)
    return path


# ---------------------------------------------------------------- a client


def test_a_real_client(script: Path, tmp_path: Path) -> None:
    pytest.importorskip("mcp", reason="the SDK is not here: pip install 'tilewright[mcp]'")
    import anyio
    from mcp import ClientSession, StdioServerParameters
    from mcp.client.stdio import stdio_client

    repro = dump(tmp_path / "sum.repro", Tensor([1.0, 2.0, 3.0]) + 1)
    failing = tmp_path / "failing.py"
    failing.write_text(FAILING)
    parameters = StdioServerParameters(
        command=sys.executable, args=["-m", "tilewright", "mcp"], cwd=str(tmp_path), env=environment(tmp_path)
    )

    async def talk() -> None:
        async with stdio_client(parameters) as (read, write), ClientSession(read, write) as client:
            await client.initialize()

            async def call(name: str, **arguments: Any) -> Any:
                answer = await client.call_tool(name, arguments)
                text = answer.content[0].text  # type: ignore[union-attr]
                assert not answer.is_error, text
                return json.loads(text)

            listed = {tool.name: tool for tool in (await client.list_tools()).tools}
            assert sorted(listed) == sorted(TOOLS)
            assert all(tool.description for tool in listed.values())
            assert "command" in listed["start_investigation"].input_schema["required"]

            traced = await call("trace", command=[str(script), "one", "--two"], depth=3)
            assert traced["status"] == 0
            assert "to stdout ['one', '--two']" in traced["output"]
            assert "store MUL float32[2]: it is an output" in traced["trace"]
            shown = await call("show_kernel", file=traced["file"], part="source")
            assert "fmul" in shown["text"] or "*" in shown["text"]

            replayed = await call("replay", file=str(repro), device="PYTHON")
            assert replayed["status"] == 0, replayed

            refused = await client.call_tool("show_kernel", {"file": str(script), "part": "colour"})
            assert refused.is_error
            assert "ask for one of: all" in refused.content[0].text  # type: ignore[union-attr]

            session = (await call("start_investigation", command=[str(failing)], seconds=60))["session"]
            await call("add_observation", session=session, text="it passes with JIT=0")
            assert (await call("check_investigation", session=session))["status"] in ("running", "done")
            assert any(session.endswith(found["id"]) for found in await call("list_investigations"))
            await call("cancel_investigation", session=session)
            assert (await call("check_investigation", session=session))["status"] in ("cancelled", "done")

    anyio.run(talk)


def environment(folder: Path) -> dict[str, str]:
    import os

    return {**os.environ, "PYTHONPATH": str(ROOT), "TILEWRIGHT_CACHE_DIR": str(folder / "cache")}


# ---------------------------------------------------------------- the tools themselves


@pytest.fixture
def bench() -> Iterator[Workbench]:
    made = Workbench()
    yield made
    made.close()


@pytest.mark.slow
def test_a_kernel_of_a_repro_file_and_of_a_script(bench: Workbench, script: Path, tmp_path: Path) -> None:
    repro = dump(tmp_path / "sum.repro", Tensor([1.0, 2.0, 3.0]) + 1)
    assert "ADD" in bench.show_kernel(str(repro), part="passes")["text"]
    assert bench.show_kernel(str(script), part="expression")["text"] == "p0[L0] = p1[L0]*3.0"


def test_a_program_that_hangs_ends_with_a_report(bench: Workbench, tmp_path: Path) -> None:
    (tmp_path / "hang.py").write_text("while True:\n    pass\n")
    with pytest.raises(ConfigError, match="still running"):
        bench.trace([str(tmp_path / "hang.py")], seconds=2.0)


@pytest.mark.parametrize(
    ("name", "arguments", "kind"),
    [
        ("trace", {"command": []}, ConfigError),
        ("trace", {"command": ["nowhere.py"]}, FileError),
        ("show_kernel", {"file": "nowhere.json"}, FileError),
        ("show_kernel", {"file": "nowhere.json", "part": "colour"}, ConfigError),
        ("replay", {"file": "nowhere.repro"}, FileError),
        ("check_investigation", {"session": "no such session"}, FileError),
        ("start_investigation", {"command": ["nowhere.py"]}, FileError),
        ("start_investigation", {"command": ["x.py"], "jobs": 0}, ConfigError),
    ],
)
def test_mistakes(bench: Workbench, name: str, arguments: dict[str, Any], kind: type[Exception]) -> None:
    with pytest.raises(kind):
        getattr(bench, name)(**arguments)


# ---------------------------------------------------------------- a language model


def test_a_proposal_counts_once_it_is_confirmed(tmp_path: Path) -> None:
    """Asked of our own server, over a connection."""
    pytest.importorskip("uvicorn", reason="the server is not here: pip install 'tilewright[serve]'")
    from tests.llm.serving import StandIn, running_server

    class Proposer(StandIn):
        context = 1 << 20
        asked: list[str]

        def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
            self.asked = [message["content"] for message in messages]
            return super().encode_chat(messages)

    failing = tmp_path / "failing.py"
    failing.write_text(FAILING)
    store = SessionStore.create(tmp_path / "sessions", {"command": [str(failing)], "failure": "ValueError: as planted"})
    served = Proposer()
    answer = '[{"settings": {"JIT": "0"}, "why": "the replay"}, {"settings": {"FUSE": 0}, "why": "fusion"}]'
    served.answer = lambda line: f"Perhaps: {answer}".encode()
    with running_server(served, warm_up=False) as running:
        found = propose(str(store.folder), f"{running.url}/v1", served.name)
        verdicts = [(each["settings"], each["verdict"]) for each in found]
        assert verdicts == [("JIT=0", "confirmed"), ("FUSE=0", "refuted")]
        assert sessions.find_session(str(store.folder)).read()["hypotheses"] == found
        assert "as planted" in served.asked[0]
        assert propose(str(store.folder), f"{running.url}/v1") == [], "what was tried is not tried again"
        with pytest.raises(ConfigError, match="refuses: 404"):
            propose(str(store.folder), f"{running.url}/v1", "another model")


@pytest.mark.parametrize(
    ("answer", "settings"),
    [
        ("I do not know.", []),
        ("[1, 2", []),
        ('[{"settings": {"NO_SUCH": "1"}}, {"settings": {"JIT": "maybe"}}, {"settings": {}}, {"settings": 3}, 7]', []),
        ('[{"settings": {"PROFILE_FILE": "/etc/passwd"}}, {"settings": {"TILEWRIGHT_CACHE_DIR": "/"}}]', []),
        (
            '[{"settings": {"NOOPT": 1, "FUSE": "0"}}, {"settings": {"NOOPT": "1", "FUSE": 0}}]',
            [{"NOOPT": "1", "FUSE": "0"}],
        ),
    ],
)
def test_what_cannot_be_tried_is_left_out(answer: str, settings: list[dict[str, str]]) -> None:
    assert [found.settings for found in parse_proposals(answer)] == settings


def test_a_server_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match="is not an address"):
        ask("file:///etc/passwd", "", "x")
    with pytest.raises(ConfigError, match="does not answer"):
        ask("http://127.0.0.1:9/v1", "", "x")


def test_a_program_that_is_right(tmp_path: Path) -> None:
    (tmp_path / "right.py").write_text("print(1)\n")
    store = SessionStore.create(tmp_path / "sessions", {"command": [str(tmp_path / "right.py")]})
    proposals = parse_proposals('[{"settings": {"JIT": "0"}}]')
    with pytest.raises(ConfigError, match="right as it is"):
        try_proposals(store, make_target([str(tmp_path / "right.py")]), proposals)
