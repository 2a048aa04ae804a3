"""The report of a session. In: the record of a session. Out: its summary in markdown, and a regression test."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

MAX_LINES = 60
REPLAY_SECONDS = 300


def summary(record: dict[str, Any]) -> str:
    """An investigation as markdown: the command, the findings and the experiments."""
    guilty = record.get("guilty")
    lines = [f"# Investigation {record['id']}: {' '.join(record['command'])}", ""]
    failure = record.get("failure") or {}
    lines += [f"Status: {record['status']}, {record.get('seconds', 0):.0f} s.", ""]
    lines += [f"Failure: {failure.get('text') or 'none was seen'}", ""]
    for known in record.get("known", []):
        lines += [f"Seen before in {known['id']}: {known['guilty']['kind']} {known['guilty']['name']}.", ""]
    lines += ["## Guilty step", ""]
    if guilty is None:
        lines += [record.get("conclusion") or "None was found.", ""]
    else:
        lines += [f"**{guilty['kind']} `{guilty['name']}`**: {guilty['text']}", ""]
        for title in ("before", "after"):
            if guilty.get(title):
                lines += [f"{title.capitalize()}:", "", "```", *_cut(guilty[title]), "```", ""]
    if record.get("reduced"):
        lines += [f"Smallest graph that fails: {record['reduced']['nodes']} nodes, `{record['reduced']['path']}`.", ""]
    if record.get("regression"):
        lines += [f"Regression test: `{record['regression']}`.", ""]
    lines += ["## Hypotheses", "", "| hypothesis | verdict | evidence | seconds |", "|---|---|---|---|"]
    for found in record["hypotheses"]:
        evidence = str(found["evidence"]).replace("|", "\\|").replace("\n", " ")[:200]
        lines.append(f"| {found['question']} | {found['verdict']} | {evidence} | {found['seconds']:.1f} |")
    return "\n".join(lines) + "\n"


def _cut(text: str) -> list[str]:
    lines = text.rstrip().splitlines()
    return lines if len(lines) <= MAX_LINES else [*lines[:MAX_LINES], f"... {len(lines) - MAX_LINES} more lines"]


def function_name(guilty: dict[str, Any] | None) -> str:
    words = "failure" if guilty is None else f"{guilty['kind']}_{guilty['name']}"
    return re.sub(r"\W+", "_", words.lower()).strip("_")[:60]


def repro_test(guilty: dict[str, Any] | None, repro: str) -> str:
    """A test that replays the smallest graph in a separate process: a kernel that writes to wrong addresses, or never
    ends, fails the test and does not end the process that runs it."""
    title = "an investigation" if guilty is None else f"{guilty['kind']} {guilty['name']}"
    lines = [
        f'"""Found by `tilewright debug`: {title}."""',
        "",
        "import subprocess",
        "import sys",
        "from pathlib import Path",
        "",
        f'REPRO = """\\\n{_escaped(repro)}"""',
        "",
        "",
        f"def test_{function_name(guilty)}(tmp_path: Path) -> None:",
        '    path = tmp_path / "smallest.repro"',
        '    path.write_text(REPRO, encoding="utf-8")',
        '    command = [sys.executable, "-m", "tilewright", "replay", str(path)]',
        f"    done = subprocess.run(command, capture_output=True, text=True, timeout={REPLAY_SECONDS})",
        "    assert done.returncode == 0, done.stdout + done.stderr",
    ]
    return "\n".join(lines) + "\n"


def program_test(
    guilty: dict[str, Any] | None,
    program: str,
    reference: dict[str, str],
    arguments: Sequence[str] = (),
    home: str = "",
) -> str:
    """A test that runs the smallest program with its arguments; where it fails by what it prints, against the same with
    everything off. `home` is the folder of the program's modules."""
    title = "an investigation" if guilty is None else f"{guilty['kind']} {guilty['name']}"
    lines = [
        f'"""Found by `tilewright debug`: {title}."""',
        "",
        "import os",
        "import subprocess",
        "import sys",
        "from pathlib import Path",
        "",
        f'PROGRAM = """\\\n{_escaped(program)}"""',
        f"ARGUMENTS = {list(arguments)!r}",
        f"HOME = {home!r}  # the modules that the program imports",
        "",
        "",
        "def run(folder: Path, **settings: str) -> subprocess.CompletedProcess[str]:",
        '    environment = {**os.environ, "TILEWRIGHT_CACHE_DIR": str(folder), "VERIFY_GRAPH": "0", **settings}',
        '    environment["PYTHONPATH"] = os.pathsep.join([HOME, os.environ.get("PYTHONPATH", "")])',
        '    script = folder / "program.py"',
        '    script.write_text(PROGRAM, encoding="utf-8")',
        "    command = [sys.executable, str(script), *ARGUMENTS]",
        "    return subprocess.run(command, env=environment, capture_output=True, text=True)",
        "",
        "",
        f"def test_{function_name(guilty)}(tmp_path: Path) -> None:",
        "    done = run(tmp_path)",
        "    assert done.returncode == 0, done.stderr",
    ]
    if reference:
        settings = ", ".join(f'{name}="{value}"' for name, value in reference.items())
        lines += [f"    right = run(tmp_path, {settings})", "    assert done.stdout == right.stdout"]
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
