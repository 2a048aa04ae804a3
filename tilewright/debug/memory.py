"""Records of investigations on disk. In: hypotheses and whole sessions, as they are made. Out: files for people
(markdown) and for programs (JSON), in a folder for each project; and the earlier sessions with the same failure. The
command line and the protocol read a session from its folder."""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tilewright.base.errors import FileError
from tilewright.runtime.cache import state_folder

SESSION, SUMMARY, OBSERVATIONS, PROCESSES = "session.json", "summary.md", "observations.txt", "processes.json"
Record = dict[str, Any]


def project_folder() -> Path:
    """The folder of the investigations of the project, which is the repository that holds the working directory, or
    that directory itself."""
    here = Path.cwd()
    root = next((folder for folder in (here, *here.parents) if (folder / ".git").exists()), here)
    digest = hashlib.sha256(str(root).encode()).hexdigest()[:8]
    return Path(state_folder()) / "investigations" / f"{root.name or 'root'}-{digest}"


class SessionStore:
    """The folder of one session."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def id(self) -> str:
        return self.folder.name

    @classmethod
    def create(cls, project: Path, record: Record) -> SessionStore:
        project.mkdir(parents=True, exist_ok=True)
        stamp = time.strftime("%Y%m%d-%H%M%S")
        number = 0
        while True:
            folder = project / (stamp if not number else f"{stamp}-{number}")
            try:
                folder.mkdir()
                break
            except FileExistsError:
                number += 1
        store = cls(folder)
        store.write({"id": store.id, "status": "running", "started": time.time(), "hypotheses": [], **record})
        return store

    def read(self) -> Record:
        try:
            found: Record = json.loads((self.folder / SESSION).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            message = f"{self.folder} holds no session: {error}"
            raise FileError("sessions", message, "`tilewright sessions list` has them all") from error
        return found

    def write(self, record: Record) -> None:
        """Replaces the file at once, because others read it meanwhile."""
        _write(self.folder / SESSION, json.dumps(record, indent=1))

    def update(self, **fields: Any) -> Record:
        record = {**self.read(), **fields}
        self.write(record)
        return record

    def add_hypothesis(self, found: Record) -> None:
        """Adds a hypothesis to the record, and a file for it."""
        record = self.read()
        record["hypotheses"].append(found)
        self.write(record)
        number = len(record["hypotheses"])
        name = re.sub(r"[^a-z0-9]+", "-", str(found["name"]).lower()).strip("-")[:50]
        _write(self.folder / f"{number:02d}-{name}.json", json.dumps(found, indent=1))
        _write(self.folder / f"{number:02d}-{name}.md", hypothesis_markdown(found))

    def observations(self) -> list[str]:
        try:
            return (self.folder / OBSERVATIONS).read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return []

    def observe(self, text: str) -> None:
        with open(self.folder / OBSERVATIONS, "a", encoding="utf-8") as file:
            file.write(" ".join(text.split()) + "\n")

    def note_processes(self, groups: list[int]) -> None:
        """The process groups that run for the session now."""
        _write(self.folder / PROCESSES, json.dumps(groups))

    def processes(self) -> list[int]:
        try:
            found: list[int] = json.loads((self.folder / PROCESSES).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return []
        return found


def _write(path: Path, text: str) -> None:
    whole = path.with_name(path.name + ".new")
    whole.write_text(text, encoding="utf-8")
    os.replace(whole, path)


def hypothesis_markdown(found: Record) -> str:
    """One hypothesis for a person."""
    lines = [f"# {found['question']}: {found['verdict']}", "", str(found["evidence"]), ""]
    if found.get("settings"):
        lines += [f"Tried with `{found['settings']}`, {found['seconds']:.1f} s.", ""]
    return "\n".join(lines)


# ---------------------------------------------------------------- earlier sessions


def all_sessions(project: Path) -> Iterator[SessionStore]:
    """The sessions of a project, the latest first."""
    if project.is_dir():
        for folder in sorted(project.iterdir(), reverse=True):
            if (folder / SESSION).exists():
                yield SessionStore(folder)


def signature_of(kind: str, text: str, ops: list[str]) -> str:
    """The same for failures alike: made from the failure without numbers and paths, and the ops of the failing
    graph."""
    plain = re.sub(r"0x[0-9a-f]+|\S*/\S*|[-+]?\d+(?:\.\d*)?(?:e[-+]?\d+)?", "#", text.split("\n")[0])
    return hashlib.sha256("\n".join([kind, plain, *sorted(set(ops))]).encode()).hexdigest()[:16]


def known_like(project: Path, signature: str, own: str) -> list[Record]:
    """Earlier sessions that ended with a name for a failure of the same signature."""
    found = []
    for store in all_sessions(project):
        record = store.read()
        if store.id != own and record.get("signature") == signature and record.get("guilty"):
            found.append({"id": store.id, "guilty": record["guilty"]})
    return found
