"""The chat page. In: the files beside this one. Out: one HTML document that loads nothing else, and its headers.

Script and style are inlined, and the content security policy allows only these, by their hashes: whatever a model
writes, no other script runs and no other host is contacted."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from importlib.resources import files

# The order in which the scripts stand in the document.
SCRIPTS = ("markdown.js", "storage.js", "client.js", "view.js", "chat.js")
STYLES = ("page.css",)


@dataclass(frozen=True)
class Page:
    """The document as it is sent."""

    body: bytes
    headers: dict[str, str]

    @property
    def etag(self) -> str:
        return self.headers["etag"]


def load_page() -> Page:
    """Put the files together."""
    script = "".join(map(read_file, SCRIPTS))
    style = "".join(map(read_file, STYLES))
    text = read_file("page.html").replace("/*STYLE*/", style).replace("/*SCRIPT*/", script)
    body = text.encode()
    policy = (
        f"default-src 'none'; script-src {hash_source(script)}; style-src {hash_source(style)}; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    headers = {
        "content-security-policy": policy,
        "cache-control": "no-cache",
        "etag": f'"{hashlib.sha256(body).hexdigest()[:32]}"',
    }
    return Page(body, headers)


def read_file(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def hash_source(text: str) -> str:
    """How a content security policy names one inline script or style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
