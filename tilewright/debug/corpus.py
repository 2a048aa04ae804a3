"""A corpus of kernels. In: repro files, and the texts that are stored in them. Out: whether each still renders to
the same text, and the difference where it does not; `update_text` stores the present text. This checks a refactor that
must not change any kernel on thousands of them, without running one."""

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
    """The text of a repro against the stored one: `status` is same, changed, or new where none is stored for the
    target."""

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
    """The key of a stored text: it differs between devices, processors and compilers."""
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
    """The present text against the one that is stored for the same target."""
    kept = repro.sources.get(text_key(device))
    if kept is None:
        return TextChange("new")
    before, now = kept.rstrip().splitlines(), rendered_text(repro, device).rstrip().splitlines()
    if before == now:
        return TextChange("same")
    lines = difflib.unified_diff(before, now, "kept", "now", lineterm="", n=2)
    return TextChange("changed", "\n".join(list(lines)[:MAX_DIFF_LINES]))


def update_text(path: Path, device: str) -> TextChange:
    """Stores the present text in the file."""
    repro = load_repro(str(path))
    device = device or repro.device
    before = compare_text(repro, device)
    made = replace(repro, sources={**repro.sources, text_key(device): rendered_text(repro, device)})
    path.write_text(write_repro(made), encoding="utf-8")
    return before
