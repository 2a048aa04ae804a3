"""`tilewright replay` and `tilewright dump`. In: repro files, or a script. Out: a line per file that says whether the
device and the definition agree, and whether the kernels still have the stored text; exit status 1 where one of these
does not hold."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from tilewright.debug.corpus import compare_text, repro_files, update_text
from tilewright.debug.dump import dump_script
from tilewright.debug.replay import replay
from tilewright.graph.text.repro import load_repro


@dataclass(frozen=True)
class ReplayRequest:
    """The arguments of the command: `update` stores the present texts of the kernels, `only_text` runs nothing."""

    path: Path
    device: str = ""
    update: bool = False
    only_text: bool = False


def run_replay(request: ReplayRequest) -> int:
    """The exit status: 0 where every file agrees and no kept text changed."""
    out = Console(highlight=False, soft_wrap=True)
    is_right = True
    for path in repro_files(request.path):
        repro = load_repro(str(path))
        device = request.device or repro.device
        if request.update:
            change = update_text(path, request.device)
            out.print(f"{path.name}: text kept ({change.status})", markup=False)
            continue
        change = compare_text(repro, device)
        words = [] if change.status == "new" else [f"text {change.status}"]
        is_right &= change.status != "changed"
        if not request.only_text:
            outcome = replay(repro, device)
            is_right &= outcome.agrees
            words.insert(0, outcome.text)
        out.print(f"{path.name} on {device}: {'; '.join(words) or 'no text kept for this target'}", markup=False)
        if change.diff:
            out.print(change.diff, markup=False)
    return 0 if is_right else 1


def run_dump(script: str, arguments: list[str], folder: Path) -> int:
    """Writes the kernels of a script."""
    made = dump_script(script, arguments, str(folder))
    print(f"{len(made)} kernels in {folder}")
    return 0
