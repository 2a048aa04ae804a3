"""The commands. In: the arguments of the process. Out: text on stdout; a mistake of the caller as a sentence on stderr
and exit status 2. The work of each command is in a separate file, which is given a record of the arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tilewright.base.version import __version__
from tilewright.cli.language import add_commands
from tilewright.cli.mistakes import mistakes

# What a script raises is shown as Python shows it.
app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)


def words(first: str, others: list[str] | None) -> tuple[str, ...]:
    return tuple(word for word in (first, *(others or [])) if word)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tilewright {__version__}")
        raise typer.Exit


@app.callback()
def tilewright(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """A tensor library that compiles."""
    del version  # its callback prints it before any command is looked at


add_commands(app)


@app.command(context_settings={"allow_interspersed_args": True})
def bench(
    workload: Annotated[str, typer.Argument(help="A script, or one of the built-in workloads.")] = "",
    arguments: Annotated[list[str] | None, typer.Argument(help="What the script is given; options after `--`.")] = None,
    module: Annotated[str, typer.Option("-m", "--module", help="Run a module, as `python -m` does.")] = "",
    plot: Annotated[Path | None, typer.Option(help="Save the roofline as a picture (PNG).")] = None,
    device: Annotated[str, typer.Option(help="The device of tensors that name none.")] = "",
    top: Annotated[int, typer.Option(min=1, help="How many kernels to list.")] = 20,
    json: Annotated[Path | None, typer.Option(help="Write every kernel and the peaks to a file.")] = None,
    again: Annotated[bool, typer.Option(help="Measure the peaks of the machine again.")] = False,
) -> None:
    """Run a workload and hold each of its kernels against what the machine can do, the greatest loss first."""
    from tilewright.cli.bench import BenchRequest, run_bench

    with mistakes():
        status = run_bench(BenchRequest(words(workload, arguments), module, plot, device, top, json, again))
    raise typer.Exit(status)


@app.command(context_settings={"allow_interspersed_args": True})
def trace(
    script: Annotated[str, typer.Argument(help="A Python script.")] = "",
    arguments: Annotated[list[str] | None, typer.Argument(help="What the script is given; options after `--`.")] = None,
    module: Annotated[str, typer.Option("-m", "--module", help="Run a module, as `python -m` does.")] = "",
    depth: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=5,
            help="How much is printed: 1 the lines that made work, 2 schedules and kernels, 3 decisions and rules, "
            "4 graphs and source, 5 every pass and assembly. 3 by default; 1 where a file is written.",
        ),
    ] = None,
    lines: Annotated[bool, typer.Option("--lines", help="Add the lines of the package that ran, by call.")] = False,
    json: Annotated[Path | None, typer.Option(help="Write the whole trace to a file.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write a web page that shows it, in one file.")] = None,
) -> None:
    """Run a program and show what became of each line: graph, rewrites, schedule, opts, source, assembly, time."""
    from tilewright.cli.trace import TraceRequest, run_trace

    with mistakes():
        status = run_trace(TraceRequest(words(script, arguments), module, depth, lines, json, html))
    raise typer.Exit(status)


@app.command()
def serve(
    model: Annotated[str, typer.Argument(help="A path, hf:repo/file, or a name of `tilewright models`.")] = "",
    host: Annotated[str, typer.Option(help="The address to listen on; by default, for this machine.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port; 0 takes any that is free.")] = 8000,
    device: Annotated[str, typer.Option(help="The device of the model.")] = "",
    shard: Annotated[int, typer.Option(min=1, help="How many devices share the model.")] = 1,
    slots: Annotated[int, typer.Option(min=1, max=256, help="Requests that run at once, in one batch.")] = 8,
    context: Annotated[int, typer.Option(min=0, help="Tokens of prompt and answer; 0: the model's, to 4096.")] = 0,
    api_key_file: Annotated[Path | None, typer.Option(help="A file whose first line clients must give as key.")] = None,
    api_key: Annotated[str, typer.Option(envvar="TILEWRIGHT_API_KEY", hidden=True)] = "",
    allow_host: Annotated[list[str] | None, typer.Option(help="A name that requests may be addressed to.")] = None,
    allow_origin: Annotated[list[str] | None, typer.Option(help="A site whose pages may call: https://name.")] = None,
    queue: Annotated[int, typer.Option(help="Requests that may wait; more get status 429.")] = 64,
    max_tokens: Annotated[int, typer.Option(help="The most that one request may generate; 0: the context.")] = 0,
    max_body: Annotated[int, typer.Option(help="Bytes of a request.")] = 1 << 18,
    request_seconds: Annotated[float, typer.Option(help="For a request, from its arrival to its end.")] = 600.0,
    read_seconds: Annotated[float, typer.Option(help="For a client to send a request, or to read.")] = 20.0,
    grace_seconds: Annotated[float, typer.Option(help="For running requests when the server is stopped.")] = 10.0,
    warm_up: Annotated[bool, typer.Option(help="Compile what requests need while there is none.")] = True,
) -> None:
    """Serve a language model: an API like OpenAI's, and a chat page."""
    from tilewright.cli.serve import ServeRequest, run_serve
    from tilewright.llm.serve.settings import Settings

    with mistakes():
        settings = Settings(
            host=host,
            port=port,
            api_key=api_key,
            allowed_hosts=tuple(name.lower() for name in allow_host or ()),
            allowed_origins=tuple(allow_origin or ()),
            queue=queue,
            max_tokens=max_tokens,
            max_body=max_body,
            request_seconds=request_seconds,
            read_seconds=read_seconds,
            grace_seconds=grace_seconds,
            warm_up=warm_up,
        )
        run_serve(ServeRequest(model, device, shard, slots, context, api_key_file, settings), typer.echo)


@app.command()
def cache(clear: Annotated[bool, typer.Option("--clear", help="Remove every entry; downloads stay.")] = False) -> None:
    """Show where compiled programs are kept and how much they take, or remove them."""
    from tilewright.cli.status import clear_cache, describe_cache

    typer.echo(clear_cache() if clear else describe_cache())


@app.command(context_settings={"allow_interspersed_args": True})
def viz(
    file: Annotated[str, typer.Argument(help="A trace or a profile (.json), or a Python script to trace.")] = "",
    arguments: Annotated[list[str] | None, typer.Argument(help="What the script is given; options after `--`.")] = None,
    module: Annotated[str, typer.Option("-m", "--module", help="Run a module, as `python -m` does.")] = "",
    html: Annotated[Path | None, typer.Option(help="Write the page to a file instead of serving it.")] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Of the loopback address; 0 takes a free one.")] = 0,
    lines: Annotated[bool, typer.Option("--lines", help="Add the lines of the package that ran, by call.")] = False,
    peaks: Annotated[bool, typer.Option("--peaks", help="Measure the peaks of the machine for the roofline.")] = False,
    browser: Annotated[bool, typer.Option(help="Open the page in a browser.")] = True,
) -> None:
    """Show a program in a web page: graphs, schedule, kernels, each rewrite, source, timeline, memory, roofline."""
    from tilewright.cli.viz import VizRequest, run_viz

    with mistakes():
        status = run_viz(VizRequest(words(file, arguments), module, html, port, lines, peaks, browser))
    raise typer.Exit(status)


@app.command()
def mcp() -> None:
    """Serve the debugger's tools over the Model Context Protocol, on stdin and stdout."""
    from tilewright.cli.mcp import run_mcp

    with mistakes():
        run_mcp()


@app.command()
def propose(
    session: Annotated[str, typer.Argument(help="Of `tilewright sessions list`; `last` is the latest.")],
    address: Annotated[str, typer.Option(help="Of a server in OpenAI's form, such as http://127.0.0.1:8000/v1.")],
    model: Annotated[str, typer.Option(help="The model to ask, where the server has several.")] = "",
) -> None:
    """Ask a language model for further hypotheses of an investigation, and try each by experiment."""
    from tilewright.debug.propose import propose as propose_hypotheses

    with mistakes():
        tried = propose_hypotheses(session, address, model)
        if not tried:
            typer.echo("the answer has no hypothesis that can be tried, or none that was not tried before")
        for found in tried:
            typer.echo(f"{found['verdict']:12} {found['settings']}  {found['question']}: {found['evidence']}")


@app.command()
def stats(
    file: Annotated[Path | None, typer.Argument(help="What PROFILE=1 or `tilewright trace --json` wrote.")] = None,
    top: Annotated[int, typer.Option(min=1, help="How many rows of each table.")] = 20,
    json: Annotated[bool, typer.Option("--json", help="Print every row as JSON.")] = False,
) -> None:
    """Show what took the time in a profile: kernels, copies and replays by line, stages of the compiler, memory."""
    from tilewright.cli.stats import print_stats

    with mistakes():
        print_stats(file, top, json)


@app.command()
def devices() -> None:
    """List the devices, which of them can be used here, and what the others need."""
    from tilewright.cli.status import devices_table

    Console(highlight=False).print(devices_table())


@app.command()
def replay(
    path: Annotated[Path, typer.Argument(help="A repro file, or a folder of them.")],
    device: Annotated[str, typer.Option(help="The device to replay on; the file's own where none is named.")] = "",
    update: Annotated[bool, typer.Option("--update", help="Keep the text that the kernels have now.")] = False,
    text: Annotated[bool, typer.Option("--text", help="Compare the kernels' texts and run nothing.")] = False,
) -> None:
    """Replay repro files and compare with the definition; exit status 1 where they differ or a kept text changed."""
    from tilewright.cli.replay import ReplayRequest, run_replay

    with mistakes():
        status = run_replay(ReplayRequest(path, device, update, text))
    raise typer.Exit(status)


@app.command(context_settings={"allow_interspersed_args": False})
def dump(
    folder: Annotated[Path, typer.Argument(help="The folder for the repro files.")],
    script: Annotated[str, typer.Argument(help="The script to run.")],
    arguments: Annotated[list[str] | None, typer.Argument(help="What the script is given.")] = None,
) -> None:
    """Run a script and write each kernel that it compiles to a repro file."""
    from tilewright.cli.replay import run_dump

    with mistakes():
        status = run_dump(script, arguments or [], folder)
    raise typer.Exit(status)


@app.command(context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True})
def debug(
    command: Annotated[
        list[str], typer.Argument(help="A repro file, a script or -m module with its arguments, or a test's id.")
    ],
    seconds: Annotated[float, typer.Option(min=1, help="How long it may take.")] = 110.0,
    jobs: Annotated[int, typer.Option(min=1, help="Scenarios that run at a time.")] = 2,
) -> None:
    """Find the step at fault by experiment: hypotheses are switched off, tried alone and bisected."""
    from tilewright.cli.debug import run_debug

    with mistakes():
        status = run_debug(command, seconds, jobs)
    raise typer.Exit(status)


@app.command()
def sessions(
    action: Annotated[str, typer.Argument(help="list, show, watch, observe or cancel.")] = "list",
    session: Annotated[str, typer.Argument(help="A session's id or folder; `last` is the latest.")] = "last",
    text: Annotated[str, typer.Argument(help="What to tell it, such as 'it passes with JIT=0'.")] = "",
) -> None:
    """Look at investigations, tell one something, or cancel it."""
    from tilewright.cli.debug import run_sessions

    with mistakes():
        status = run_sessions(action, session, text)
    raise typer.Exit(status)


def main() -> None:
    app(prog_name="tilewright")
