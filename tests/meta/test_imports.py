"""Imports: which folder may import which, no cycle between files or between folders, what an import costs, how long a
file may be, how many a folder may have.

The imports are read with `ast`, so one inside a function or under TYPE_CHECKING counts like one at the top of the file.
"""

from __future__ import annotations

import ast
import collections
import functools
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.meta.statements import statements_of

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "tilewright"
FILES = sorted(PACKAGE.rglob("*.py"))

LEFT = frozenset({"base", "graph"})
STAGES = LEFT | {"schedule", "kernel", "codegen", "runtime", "backends"}
ANYTHING = frozenset({"*"})

# What each folder may import from the package, besides itself. A folder without a line here fails the test.
ALLOWED: dict[str, frozenset[str]] = {
    "base": frozenset(),
    "graph": frozenset({"base"}),
    "schedule": LEFT,
    "kernel": LEFT,
    "codegen": LEFT,
    "runtime": LEFT,
    "backends": LEFT | {"runtime"},
    "engine": STAGES,
    "tensor": LEFT | {"engine", "runtime"},
    "fft": frozenset({"base", "graph", "tensor"}),
    "linalg": frozenset({"base", "tensor"}),
    "nn": STAGES | {"engine", "tensor"},
    "llm": LEFT | {"runtime", "engine", "tensor", "nn"},
    "array_api": LEFT | {"runtime", "engine", "tensor", "fft", "linalg"},
    "debug": ANYTHING,
    "cli": ANYTHING,
    "__init__": ANYTHING,
    "__main__": ANYTHING,
}
# What writes text for a device shares the expansion of tiles and the C dialect; the passes stay behind the wall.
SHARED_BY_RENDERERS = ("tiles", "c_style")
# debug/ watches the stages through base/events, and cli/ is where a program starts: nothing else depends on either.
UNIMPORTABLE = frozenset({"debug", "cli"})
LINE_LIMIT = 400
LINE_CAP = 450
# Files that lie in one folder, without those of its sub-folders (docs/decisions/0046), and the folders still to be cut.
FILE_LIMIT = 20
FILE_CAP = 24
LARGE_FOLDERS = frozenset({"kernel/templates", "backends/cuda", "backends/cpu/rendering", "debug/investigate"})


def module_of(path: Path) -> tuple[str, ...]:
    """The dotted name of a file as a tuple: graph/uop.py is ("tilewright", "graph", "uop")."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" else parts


def folder_of(path: Path) -> str:
    """The folder a file counts to; files that lie in the package itself count by their own name."""
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


@functools.cache
def imported_modules(source: str, path: Path) -> list[tuple[int, tuple[str, ...]]]:
    """Every module a file imports, with its line. `from a import b` gives a.b: b may be a module."""
    module = module_of(path)
    package = module if path.name == "__init__.py" else module[:-1]
    found = []
    for node in statements_of(source, str(path)):
        if isinstance(node, ast.Import):
            found += [(node.lineno, tuple(alias.name.split("."))) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else ()
            start += tuple(node.module.split(".")) if node.module else ()
            found += [(node.lineno, (*start, alias.name)) for alias in node.names]
    return found


def broken_walls(source: str, path: Path) -> list[str]:
    """What a file imports and may not, one line each."""
    folder = folder_of(path)
    where = path.relative_to(ROOT)
    if folder not in ALLOWED:
        return [f"{where}: folder {folder!r} has no line in ALLOWED"]
    broken = []
    for line, target in imported_modules(source, path):
        if target[0] != "tilewright":
            if folder == "base" and target[0] not in sys.stdlib_module_names:
                broken.append(f"{where}:{line}: base/ imports the standard library alone, not {target[0]}")
            continue
        # `from tilewright import Tensor` reaches through the public names to every folder.
        other = target[1] if len(target) > 1 and is_folder(target[1]) else "__init__"
        if other in UNIMPORTABLE and folder not in UNIMPORTABLE and folder != "__main__":
            broken.append(f"{where}:{line}: {other}/ is imported by nothing")
        elif folder == "backends" and other == "codegen" and target[2:3] and target[2] in SHARED_BY_RENDERERS:
            continue
        elif other != folder and other not in ALLOWED[folder] and "*" not in ALLOWED[folder]:
            broken.append(f"{where}:{line}: {folder} may not import {other} ({'.'.join(target)})")
        elif folder == other == "backends" and crosses_backends(path, target):
            broken.append(f"{where}:{line}: a backend may not import another backend ({'.'.join(target)})")
    return broken


def is_folder(name: str) -> bool:
    return name in ALLOWED or (PACKAGE / name).is_dir()


def crosses_backends(path: Path, target: tuple[str, ...]) -> bool:
    """Whether a file of one backend's folder imports from the folder of another."""
    own = path.relative_to(PACKAGE / "backends").parts
    other = target[2] if len(target) > 2 else ""
    return len(own) > 1 and other != own[0] and (PACKAGE / "backends" / other).is_dir() and other != ""


def imports_between_files(sources: dict[Path, str]) -> dict[str, set[str]]:
    """The files of the package each file imports. `from a import b` is a/b.py where that exists, else file a."""
    files = {module_of(path): str(path.relative_to(PACKAGE)) for path in sources}
    graph = {}
    for path, source in sources.items():
        targets = [target for _, target in imported_modules(source, path)]
        own = str(path.relative_to(PACKAGE))
        graph[own] = {files.get(target) or files.get(target[:-1]) or own for target in targets} - {own}
    return graph


def import_cycles(graph: dict[str, set[str]]) -> list[set[str]]:
    """The strongly connected components of more than one file, sorted (Tarjan's algorithm)."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}  # the earliest file of the open component that a file reaches
    open_files: list[str] = []
    found: list[set[str]] = []

    def visit(file: str) -> None:
        order[file] = lowest[file] = len(order)
        open_files.append(file)
        for target in sorted(graph[file]):
            if target not in order:
                visit(target)
            if target in open_files:
                lowest[file] = min(lowest[file], lowest[target])
        if lowest[file] == order[file]:
            start = open_files.index(file)
            if len(component := set(open_files[start:])) > 1:
                found.append(component)
            del open_files[start:]

    for file in sorted(graph):
        if file not in order:
            visit(file)
    return sorted(found, key=min)


def test_no_cycles_between_files() -> None:
    cycles = import_cycles(imports_between_files({path: path.read_text() for path in FILES}))
    assert cycles == [], "move what the files of a cycle need below all of them"


def test_a_cycle_between_files_is_seen() -> None:
    sources = {
        "kernel/one.py": "from tilewright.kernel import two",
        "kernel/two.py": "def f():\n    from .three import name",
        "kernel/three.py": "if TYPE_CHECKING:\n    from tilewright.kernel.one import name",
        "kernel/four.py": "from tilewright.kernel.one import name",
        "kernel/room/__init__.py": "from tilewright.kernel.room.five import name",
        "kernel/room/five.py": "from tilewright.kernel.room import name",
    }
    graph = imports_between_files({PACKAGE / file: source for file, source in sources.items()})
    assert import_cycles(graph) == [
        {"kernel/one.py", "kernel/two.py", "kernel/three.py"},
        {"kernel/room/__init__.py", "kernel/room/five.py"},
    ]


def imports_between_folders(graph: dict[str, set[str]]) -> dict[str, set[str]]:
    """The folders that each folder imports, of those that lie in the same folder: an import of kernel/a/b/one.py from
    kernel/c/two.py is one of kernel/c from kernel/a."""
    found: dict[str, set[str]] = {}
    for file, targets in graph.items():
        for target in targets:
            own, other = Path(file).parts[:-1], Path(target).parts[:-1]
            depth = next((n for n, pair in enumerate(zip(own, other, strict=False)) if pair[0] != pair[1]), None)
            if depth is not None:
                folders = ["/".join(parts[: depth + 1]) for parts in (own, other)]
                found.setdefault(folders[0], set()).add(folders[1])
                found.setdefault(folders[1], set())
    return found


def test_no_cycles_between_folders() -> None:
    graph = imports_between_files({path: path.read_text() for path in FILES})
    cycles = import_cycles(imports_between_folders(graph))
    assert cycles == [], "move what the folders of a cycle need to one of them, or to a file beside them"


def test_a_cycle_between_folders_is_seen() -> None:
    sources = {
        "kernel/first/one.py": "from tilewright.kernel.second import two",
        "kernel/second/two.py": "",
        "kernel/second/three.py": "def f():\n    from tilewright.kernel.third.inner.four import name",
        "kernel/third/inner/four.py": "",
        "kernel/third/other/five.py": "from tilewright.kernel.first.six import name",
        "kernel/first/six.py": "from tilewright.kernel.fourth.seven import name",
        # A file beside folders, and a folder that only imports those of the cycle, are not part of it.
        "kernel/fourth/seven.py": "from tilewright.kernel.beside import name",
        "kernel/beside.py": "from tilewright.kernel.first.one import name",
        "kernel/fifth/eight.py": "from tilewright.kernel.first.one import name",
    }
    files = imports_between_files({PACKAGE / file: source for file, source in sources.items()})
    assert import_cycles(files) == []
    assert import_cycles(imports_between_folders(files)) == [{"kernel/first", "kernel/second", "kernel/third"}]


ENGINE_FOLDERS = ("memory", "compilation", "planning", "execution", "jit")


def test_folders_of_the_engine_import_those_before_them() -> None:
    for path in (PACKAGE / "engine").glob("*/**/*.py"):
        own = ENGINE_FOLDERS.index(module_of(path)[2])
        targets = [target for _, target in imported_modules(path.read_text(), path)]
        rooms = {target[2] for target in targets if target[:2] == ("tilewright", "engine")}
        later = rooms.intersection(ENGINE_FOLDERS[own + 1 :])
        assert not later, f"{path.relative_to(ROOT)} imports {later}"


def test_imports_point_left() -> None:
    faults = {str(path.relative_to(PACKAGE)): broken_walls(path.read_text(), path) for path in FILES}
    assert {path: fault for path, fault in faults.items() if fault} == {}


@pytest.mark.parametrize(
    ("file", "source", "complaint"),
    [
        ("base/probe.py", "import numpy", "standard library alone"),
        ("base/probe.py", "from tilewright.graph import uop", "base may not import graph"),
        ("graph/probe.py", "from ..schedule import fuse", "graph may not import schedule"),
        ("schedule/probe.py", "def f():\n    import tilewright.kernel.axes", "schedule may not import kernel"),
        ("codegen/probe.py", "from tilewright.backends import registry", "codegen may not import backends"),
        ("runtime/probe.py", "from tilewright.backends.cpu import device", "runtime may not import backends"),
        ("backends/cpu/probe.py", "from tilewright.codegen import linearise", "backends may not import codegen"),
        ("backends/cpu/probe.py", "from tilewright.backends.python import device", "another backend"),
        ("backends/cpu/probe.py", "from ..python.device import run", "another backend"),
        ("tensor/probe.py", "from tilewright.schedule.fusion import fuse", "tensor may not import schedule"),
        ("engine/probe.py", "from tilewright.tensor import tensor", "engine may not import tensor"),
        ("engine/probe.py", "from tilewright.debug import trace", "imported by nothing"),
        ("kernel/probe.py", "from tilewright import Tensor", "kernel may not import __init__"),
        ("novelty/probe.py", "", "has no line in ALLOWED"),
    ],
)
def test_a_broken_wall_is_seen(file: str, source: str, complaint: str) -> None:
    (broken,) = broken_walls(source, PACKAGE / file)
    assert complaint in broken


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("base/probe.py", "import os\nfrom tilewright.base.errors import ShapeError"),
        ("graph/simplify/probe.py", "from tilewright.graph.uop import UOp\nimport numpy"),
        ("backends/cpu/probe.py", "from tilewright.runtime import buffer\nfrom . import renderer\nimport llvmlite"),
        ("backends/cpu/probe.py", "from tilewright.backends import registry"),
        ("backends/registry.py", "from tilewright.backends.cpu import manifest"),
        ("backends/cpu/probe.py", "from tilewright.codegen.tiles import TileFacts"),
        ("engine/probe.py", "from tilewright.codegen import linearise"),
        ("debug/probe.py", "from tilewright.tensor import tensor"),
    ],
)
def test_an_allowed_import_passes(file: str, source: str) -> None:
    assert broken_walls(source, PACKAGE / file) == []


def run_python(program: str) -> str:
    """What a program prints in a new process, where nothing has been imported yet."""
    finished = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def test_import_stays_light() -> None:
    loaded = set(json.loads(run_python("import json, sys, tilewright; print(json.dumps(sorted(sys.modules)))")))
    heavy = {"numpy", "llvmlite", "ml_dtypes", "rich", "typer", "platformdirs", "asyncio"}
    assert "tilewright" in loaded
    assert loaded & heavy == set()


def test_public_names_are_sorted_and_exist() -> None:
    program = (
        "import json, tilewright; names = list(tilewright.__all__);"
        "print(json.dumps([names, [name for name in names if not hasattr(tilewright, name)]]))"
    )
    names, missing = json.loads(run_python(program))
    assert names, "tilewright.__all__ is empty"
    assert names == sorted(set(names))
    assert missing == []


def test_files_are_short() -> None:
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in FILES}
    too_long = {name: length for name, length in lengths.items() if length > LINE_CAP}
    assert too_long == {}, f"over the cap of {LINE_CAP} lines (aim for {LINE_LIMIT}): find the natural cut"


def test_folders_have_few_files() -> None:
    counts = collections.Counter(path.parent.relative_to(PACKAGE).as_posix() for path in FILES)
    large = {folder: count for folder, count in counts.items() if count > FILE_CAP}
    assert large.keys() - LARGE_FOLDERS == set(), f"over the cap of {FILE_CAP} files (aim for {FILE_LIMIT}): cut it"
    assert large.keys() == LARGE_FOLDERS, "a folder that has been cut is large no longer: take it out of the list"
