"""The examples of docs/serve.md run against a server, and its tables name the paths and options that there are."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import fields

import pytest
from typer.testing import CliRunner

from tests.docs.examples import DOCS, examples_of, first_column, promised_lines
from tests.llm.serving import HTTP, StandIn, running_server
from tilewright.cli.main import app
from tilewright.llm.serve.app import Service, make_app
from tilewright.llm.serve.settings import Settings

PAGE = DOCS / "serve.md"
ADDRESS = "http://127.0.0.1:8000"


def test_python_examples(capsys: pytest.CaptureFixture[str]) -> None:
    model = StandIn()
    model.answer = lambda line: b"there was a server " * 10
    with running_server(model) as running:
        for example in examples_of(PAGE):
            exec(compile(example.replace(ADDRESS, running.url), "serve.md", "exec"), {})
    assert capsys.readouterr().out.splitlines() == promised_lines(PAGE)


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_examples() -> None:
    commands = re.findall(r"^curl .*$", PAGE.read_text(), flags=re.MULTILINE)
    assert len(commands) == 2
    with running_server(StandIn()) as running:
        here = [command.replace(ADDRESS, running.url) for command in commands]
        whole, streamed = (subprocess.run(one, shell=True, capture_output=True, text=True, check=True) for one in here)
    assert '"content":"WHAT IS THE CAPITAL OF FRANCE?"' in whole.stdout
    assert streamed.stdout.endswith("data: [DONE]\n\n")


def test_the_table_of_paths_is_whole() -> None:
    routes = make_app(Service(StandIn(), Settings())).routes
    paths = {route.path for route in routes if "{" not in route.path and not route.path.endswith(".ico")}  # type: ignore[attr-defined]
    assert {row.strip("`").split()[1] for row in first_column(PAGE, "With curl:")} == paths


def test_the_options_that_the_page_names_exist() -> None:
    text = CliRunner().invoke(app, ["serve", "--help"], env={"COLUMNS": "200"}).stdout
    named = set(re.findall(r"--[a-z][a-z-]+", PAGE.read_text()))
    assert named - set(re.findall(r"--[a-z-]+", text)) == set()


def test_metrics_that_the_page_names_exist() -> None:
    with running_server(StandIn()) as running:
        HTTP.post(f"{running.url}/v1/completions", json={"prompt": "x"})
        shown = HTTP.get(f"{running.url}/metrics").text
    for name in re.findall(r"`(tilewright_\w+)`", PAGE.read_text()):
        assert f"\n{name}" in shown, name


def test_defaults_of_the_command_are_those_of_the_settings() -> None:
    from typer.main import get_command

    options = {option.name: option.default for option in get_command(app).commands["serve"].params}  # type: ignore[attr-defined]
    for field in fields(Settings):
        if field.name in options:
            assert options[field.name] == field.default, field.name
