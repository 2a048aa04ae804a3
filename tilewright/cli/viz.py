"""`tilewright viz`. In: a trace or profile in a file, or a program to trace. Out: its web page, served on the loopback
address until it is interrupted, or written to a file. Only the page is served, and only to this machine."""

from __future__ import annotations

import sys
import threading
import webbrowser
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tilewright.base.errors import ConfigError
from tilewright.cli.programs import find_program
from tilewright.cli.roofs import roofs_of
from tilewright.cli.stats import read_timeline
from tilewright.cli.trace import trace_program
from tilewright.debug.trace.encode import is_trace, read_trace
from tilewright.debug.trace.records import Trace
from tilewright.debug.viz import trace_of, trace_page, write_page

LOOPBACK = "127.0.0.1"
NAMES_OF_LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})


@dataclass(frozen=True)
class VizRequest:
    """The arguments of the command. `given` is a file, or a script and its arguments."""

    given: tuple[str, ...]
    module: str = ""
    html: Path | None = None
    port: int = 0
    lines: bool = False
    peaks: bool = False
    browser: bool = True


def run_viz(request: VizRequest) -> int:
    trace, status = find_trace(request)
    roofs = roofs_of(trace, request.peaks)
    if request.html is not None:
        write_page(trace, request.html, roofs)
        return status
    server = PageServer(trace_page(trace, roofs), request.port)
    sys.stdout.write(f"{server.address}  (Ctrl-C ends it)\n")
    sys.stdout.flush()
    if request.browser:
        # In a thread: a browser that runs in the terminal, or a missing one, does not delay the server.
        threading.Thread(target=webbrowser.open, args=(server.address,), daemon=True).start()
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        sys.stdout.write("\n")
    finally:
        server.server_close()
    return status


def find_trace(request: VizRequest) -> tuple[Trace, int]:
    """What to show, and the exit status of the program that was run for it."""
    if not request.module and len(request.given) == 1 and request.given[0].endswith(".json"):
        path = Path(request.given[0])
        return read_trace(path) if path.is_file() and is_trace(path) else trace_of(read_timeline(path)), 0
    if not request.given and not request.module:
        raise ConfigError("viz", "nothing to show", "name a trace, a profile, or a script")
    program = find_program("viz", request.given, request.module)
    trace, outcome = trace_program(program, request.lines)
    return trace, outcome.status


class PageServer(ThreadingHTTPServer):
    """Serves one document."""

    daemon_threads = True

    def __init__(self, document: str, port: int = 0) -> None:
        self.document = document.encode()
        try:
            super().__init__((LOOPBACK, port), PageHandler)
        except OSError as error:
            message = f"port {port} cannot be used: {error.strerror}"
            raise ConfigError("viz", message, "choose another with --port; 0 takes a free one") from error

    @property
    def address(self) -> str:
        return f"http://{LOOPBACK}:{self.server_address[1]}/"


class PageHandler(BaseHTTPRequestHandler):
    """Answers `GET /` with the document. A page of another host that has its name resolved to this machine is refused:
    it would read the user's sources."""

    server: PageServer

    def do_GET(self) -> None:
        host = self.headers.get("Host", "").rpartition(":")[0] or self.headers.get("Host", "")
        if host not in NAMES_OF_LOOPBACK:
            self.send_error(403, "this page is for the machine that it is on")
        elif self.path.partition("?")[0] != "/":
            self.send_error(404, "there is one page here: /")
        else:
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(self.server.document)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("X-Content-Type-Options", "nosniff")
            self.send_header("Referrer-Policy", "no-referrer")
            self.end_headers()
            self.wfile.write(self.server.document)

    def log_message(self, format: str, *arguments: object) -> None:
        """Prints nothing."""
