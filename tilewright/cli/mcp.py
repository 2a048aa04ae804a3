"""`tilewright mcp`. In: requests of the Model Context Protocol on stdin. Out: answers on stdout. The tools are those of
`debug/agents.py`; a mistake of the caller is an answer that says what to do."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable
from typing import Any

from tilewright.base.errors import UnsupportedError, UserError
from tilewright.base.version import __version__
from tilewright.debug.agents import Workbench

TOOLS = (
    "start_investigation",
    "check_investigation",
    "add_observation",
    "cancel_investigation",
    "list_investigations",
    "show_kernel",
    "replay",
    "trace",
    "propose_hypotheses",
)
INSTRUCTIONS = (
    "Tilewright is a tensor library that compiles. Where a program gives a wrong result, start an investigation and "
    "check it until it is done: it finds the guilty step by experiment. Tell it what you observe. Trace a script to "
    "read what became of its lines, and show a kernel for its source and assembly."
)


def make_server(workbench: Workbench) -> Any:
    """The server, with a tool for each function."""
    try:
        from mcp.server.mcpserver import MCPServer
    except ImportError as error:
        remedy = "pip install 'tilewright[mcp]'"
        raise UnsupportedError("mcp", "the SDK of the protocol is not installed", remedy) from error
    server = MCPServer("tilewright", instructions=INSTRUCTIONS, version=__version__)
    for name in TOOLS:
        server.tool(name=name)(as_tool(getattr(workbench, name)))
    return server


def as_tool(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function in another thread, so that other requests are answered meanwhile; its result as JSON text."""
    from anyio import to_thread
    from mcp.server.mcpserver.exceptions import ToolError

    @functools.wraps(function)
    async def tool(*arguments: Any, **named: Any) -> str:
        try:
            found = await to_thread.run_sync(functools.partial(function, *arguments, **named))
        except UserError as error:
            remedy = f" To fix it: {error.remedy}" if error.remedy else ""
            raise ToolError(f"{error.operation}: {error.message}.{remedy}") from error
        return json.dumps(found, indent=1, default=str)

    signature = inspect.signature(function, eval_str=True)
    tool.__signature__ = signature.replace(return_annotation=str)  # type: ignore[attr-defined]
    tool.__annotations__ = {name: each.annotation for name, each in signature.parameters.items()} | {"return": str}
    return tool


def run_mcp() -> None:
    """Answer until stdin ends."""
    workbench = Workbench()
    try:
        make_server(workbench).run("stdio")
    finally:
        workbench.close()
