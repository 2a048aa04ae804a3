"""Files over the network: `Tensor.from_url` against a server of this process, with its answers counted."""

from __future__ import annotations

import gzip
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from tilewright import Context, Tensor
from tilewright.base.errors import CacheError, DTypeError, FileError, FileFormatError, ShapeError
from tilewright.runtime.sealed import HEADER_BYTES

CONTENT = bytes(range(256)) * 3000
FILES = {
    "/data.bin": CONTENT,
    "/data.gz": gzip.compress(CONTENT),
    "/cut.gz": gzip.compress(CONTENT)[:-9],
    "/begun.gz": b"\x1f\x8b",
    "/empty": b"",
    "/odd": b"12345",
    "/words": np.arange(6, dtype="<i4").tobytes(),
}


class Answers(BaseHTTPRequestHandler):
    """Gives FILES; `/short` promises more than it sends, `/moved` leads to another file."""

    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        if self.path == "/moved":
            self.send_response(302)
            self.send_header("Location", "/data.bin")
            self.end_headers()
            return
        data = b"half of it" if self.path == "/short" else FILES.get(self.path)
        if data is None:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(20 if self.path == "/short" else len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """The test asks `asked` instead."""


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a running server; the cache is a folder of the test."""
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(Answers, "asked", [], raising=False)
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        with Context(TILEWRIGHT_CACHE_DIR=str(tmp_path / "cache")):
            yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()
        thread.join()


def kept(tmp_path: Path) -> list[bytes]:
    return [path.read_bytes()[HEADER_BYTES:] for path in (tmp_path / "cache" / "downloads").iterdir()]


def test_bytes_are_fetched_once_and_kept(server: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        found = Tensor.from_url(f"{server}/data.bin")
        assert (found.shape, found.dtype.name) == ((len(CONTENT),), "uint8")
        assert found.numpy().tobytes() == CONTENT
    assert Answers.asked == ["/data.bin"]
    assert kept(tmp_path) == [CONTENT]
    assert "data.bin" in capsys.readouterr().err


def test_a_kept_file_needs_no_network(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Tensor.from_url(f"{server}/data.bin", progress=False)

    def refuse(*args: object) -> None:
        raise OSError("the network is down")

    monkeypatch.setattr(socket, "create_connection", refuse)
    assert Tensor.from_url(f"{server}/data.bin", progress=False)[300].item() == 300 % 256
    with pytest.raises(FileError, match=r"data\.gz cannot be fetched .*the network is down"):
        Tensor.from_url(f"{server}/data.gz", progress=False)


@pytest.mark.parametrize("path", ["data.bin", "moved"])
def test_addresses_that_lead_to_the_file(server: str, path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert Tensor.from_url(f"{server}/{path}", progress=False).numpy().tobytes() == CONTENT
    assert capsys.readouterr().err == ""


def test_gunzip(server: str) -> None:
    assert Tensor.from_url(f"{server}/data.gz", gunzip=True).numpy().tobytes() == CONTENT
    assert Tensor.from_url(f"{server}/data.gz").numpy().tobytes() == FILES["/data.gz"]
    for path in ("data.bin", "cut.gz", "begun.gz"):
        with pytest.raises(FileFormatError, match=f"{path}' is not a whole gzip file"):
            Tensor.from_url(f"{server}/{path}", gunzip=True)


def test_the_further_arguments_are_those_of_a_tensor(server: str) -> None:
    found = Tensor.from_url(f"{server}/words", dtype="int32", device="PYTHON")
    assert (found.device, found.tolist()) == ("PYTHON", [0, 1, 2, 3, 4, 5])
    with pytest.raises(ShapeError, match="5 bytes are not a whole number of int32"):
        Tensor.from_url(f"{server}/odd", dtype="int32")


def test_an_empty_file(server: str) -> None:
    assert Tensor.from_url(f"{server}/empty").shape == (0,)


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/nothing.bin", r"nothing\.bin cannot be fetched \(404 Not Found\)"),
        ("/short", "short ended after 10 of 20 bytes"),
    ],
)
def test_what_the_server_does_not_give_is_told_and_not_kept(
    server: str, tmp_path: Path, path: str, reason: str
) -> None:
    with pytest.raises(FileError, match=f"from_url: '{server}{path}': {reason}") as caught:
        Tensor.from_url(server + path, progress=False)
    assert "check the address and the network" in str(caught.value)
    assert __file__ in str(caught.value)
    assert kept(tmp_path) == []


def test_nobody_listens(server: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = reserved.getsockname()[1]
    with pytest.raises(FileError, match=r"x cannot be fetched .*refused"):
        Tensor.from_url(f"http://127.0.0.1:{port}/x", progress=False)


@pytest.mark.parametrize("address", ["data.bin", "nonsense:data", "http://"])
def test_what_is_no_address(server: str, address: str) -> None:
    with pytest.raises(FileError, match="cannot be fetched"):
        Tensor.from_url(address, progress=False)
    with pytest.raises(DTypeError, match="a PosixPath is not an address"):
        Tensor.from_url(Path(address))


def test_a_file_of_this_machine_is_read_anew(server: str, tmp_path: Path) -> None:
    path = tmp_path / "some bytes"
    for data in (b"first", b"second"):
        path.write_bytes(data)
        assert Tensor.from_url(path.as_uri(), progress=False).numpy().tobytes() == data
    with pytest.raises(FileError, match="No such file"):
        Tensor.from_url(path.as_uri() + "s")
    assert not (tmp_path / "cache").exists()


def test_a_cache_that_cannot_be_written(server: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with Context(TILEWRIGHT_CACHE_DIR=str(tmp_path / "file")), pytest.raises(CacheError, match="TILEWRIGHT_CACHE_DIR"):
        Tensor.from_url(f"{server}/data.bin")
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "downloads").write_text("")
    with pytest.raises(CacheError, match="downloads"):
        Tensor.from_url(f"{server}/data.bin")
