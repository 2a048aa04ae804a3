"""`tilewright serve`. In: the arguments of the command. Out: a server that runs until it is stopped, or an error
that says what is missing. The model is opened as `tilewright chat` opens it."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from tilewright.base.errors import ConfigError, FileError
from tilewright.llm.serve.settings import Settings

NEEDED = ("prometheus_client", "starlette", "uvicorn")


@dataclass(frozen=True)
class ServeRequest:
    """The arguments of the command. `key_file` has the key in its first line, so that no list of processes shows it."""

    model: str
    device: str
    shard: int
    slots: int
    context: int
    key_file: Path | None
    settings: Settings


def run_serve(request: ServeRequest, tell: Callable[[str], None]) -> None:
    """Opens the model and serves it. `tell` is called with lines for the operator."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        remedy = "pip install 'tilewright[llm,serve]'"
        raise ConfigError("serve", f"{', '.join(missing)} must be installed for it", remedy)
    settings = with_key(request.settings, request.key_file)
    from tilewright.llm.serve.app import Service
    from tilewright.llm.serve.model import open_served
    from tilewright.llm.serve.server import bind_socket, run_server

    # Before the model is read, which takes long, so that a port that is taken is reported at once.
    with bind_socket(settings.host, settings.port) as listening:
        for warning in settings.warnings():
            tell(f"warning: {warning}")
        model = open_served(request.model, request.device, request.shard, request.slots, request.context)

        def tell_address(address: str) -> None:
            tell(f"{model.name}, {model.slots} at once, {model.context} tokens of context")
            tell(f"chat page  {address}/")
            tell(f"API        {address}/v1")
            tell("Ctrl-C stops it.")

        run_server(Service(model, settings), listening, tell_address)
    tell("stopped")


def with_key(settings: Settings, key_file: Path | None) -> Settings:
    """The settings with the key of a file, which replaces that of the environment."""
    if key_file is None:
        return settings
    try:
        lines = key_file.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise FileError("serve", f"the key cannot be read from {key_file}: {error}", "name a text file") from error
    if not lines or not lines[0].strip():
        raise ConfigError("serve", f"{key_file} is empty", "write the key into its first line")
    return replace(settings, api_key=lines[0].strip())
