"""A corpus of kernels. In: repro files, and the texts that were kept in them. Out: whether each still renders to the
same text, and the difference where it does not; `update_text` keeps the text of today. So a refactor that must not
change any kernel is tried on thousands of them without running one."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import tilewright.engine.devices  # noqa: F401 (enters the devices)
from tilewright.base.config import Context
from tilewright.base.errors import FileError
from tilewright.base.records import replace
from tilewright.debug.replay import bound_outputs, contents_of, stripped_kernel
from tilewright.engine.compilation.compile import draft_kernel
from tilewright.engine.compilation.stored import target_text
from tilewright.engine.execution.realize import schedule
from tilewright.graph.text.repro import SUFFIX, Repro, load_repro, write_repro
from tilewright.runtime.device import open_driver

MAX_DIFF_LINES = 60


@dataclass(frozen=True)
class TextChange:
    """What became of the text of a repro: `status` is same, changed, or new where none was kept for this target."""

    status: str
    diff: str = ""


def repro_files(path: Path) -> Iterator[Path]:
    """The file, or all repro files of a folder, in order of their names."""
    if path.is_dir():
        found = sorted(path.rglob(f"*{SUFFIX}"))
        if not found:
            raise FileError("replay", f"{path} holds no {SUFFIX} files", "write some with `tilewright dump`")
        yield from found
    else:
        yield path


def text_key(device: str) -> str:
    """What a text is kept under: another processor, or another compiler, has texts of its own."""
    digest = hashlib.sha256(target_text(open_driver(device).target).encode()).hexdigest()[:16]
    return f"{device} {digest}"


def rendered_text(repro: Repro, device: str) -> str:
    """The source of its kernels, in order."""
    with Context(**{**repro.options, "CACHE": 0}):
        if repro.kind == "kernel":
            kernel, opts = stripped_kernel(repro, device)
            return draft_kernel(kernel, device, opts).source
        outputs = bound_outputs(repro, device, contents_of(repro))
        plan = schedule(outputs, device)
        texts = [draft_kernel(item.ast, item.device, None).source for item in plan.items if item.ast is not None]
        return "\n".join(texts)


def compare_text(repro: Repro, device: str) -> TextChange:
    """The text of today against the one that was kept for the same target."""
    kept = repro.sources.get(text_key(device))
    if kept is None:
        return TextChange("new")
    before, now = kept.rstrip().splitlines(), rendered_text(repro, device).rstrip().splitlines()
    if before == now:
        return TextChange("same")
    lines = difflib.unified_diff(before, now, "kept", "now", lineterm="", n=2)
    return TextChange("changed", "\n".join(list(lines)[:MAX_DIFF_LINES]))


def update_text(path: Path, device: str) -> TextChange:
    """Keeps the text of today in the file."""
    repro = load_repro(str(path))
    place = device or repro.device
    before = compare_text(repro, place)
    made = replace(repro, sources={**repro.sources, text_key(place): rendered_text(repro, place)})
    path.write_text(write_repro(made), encoding="utf-8")
    return before
