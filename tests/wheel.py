"""The wheel builds, installs and works: `python -m tests.wheel`, or `make test-wheel`. In: the sources of the package.
Out: exit status 0, or what is wrong.

The wheel is built from a copy of the sources, so that files left in `build/` by an earlier build cannot enter it. It
must hold every file of the package. It is installed with its dependencies into a new virtual environment, outside of
the repository, where the first example of README.md and the command `tilewright` are run with warnings as errors."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

from tests.docs.examples import ROOT, examples_of

SOURCES = ("pyproject.toml", "README.md", "LICENSE", "tilewright")
PIP = ("-m", "pip", "--quiet", "--disable-pip-version-check")


def build_wheel(folder: Path) -> Path:
    """The wheel, made in a folder from a copy of the sources."""
    sources = folder / "sources"
    sources.mkdir()
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, sources / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, sources)
    subprocess.run([sys.executable, *PIP, "wheel", "--no-deps", "--wheel-dir", folder, sources], check=True)
    (wheel,) = folder.glob("tilewright-*.whl")
    return wheel


def missing_files(wheel: Path) -> list[str]:
    """Files of the package that the wheel lacks."""
    with zipfile.ZipFile(wheel) as archive:
        packed = set(archive.namelist())
    wanted = {str(path.relative_to(ROOT)) for path in (ROOT / "tilewright").rglob("*") if path.is_file()}
    return sorted(name for name in wanted - packed if "__pycache__" not in name)


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="tilewright-wheel-") as name:
        folder = Path(name)
        wheel = build_wheel(folder)
        missing = missing_files(wheel)
        if missing:
            print(f"{wheel.name} lacks: {', '.join(missing)}")
            return 1
        venv.create(folder / "venv", with_pip=True)
        scripts = folder / "venv" / ("Scripts" if os.name == "nt" else "bin")
        subprocess.run([scripts / "python", *PIP, "install", wheel], check=True)
        environment = {**os.environ, "TILEWRIGHT_CACHE_DIR": str(folder / "cache"), "PYTHONPATH": ""}
        example = examples_of(ROOT / "README.md")[0]
        for command in (
            [scripts / "python", "-W", "error", "-c", example],
            [scripts / "tilewright", "--version"],
            [scripts / "tilewright", "devices"],
        ):
            subprocess.run(command, cwd=folder, env=environment, check=True)
        print(f"{wheel.name} installs and runs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
