"""An ARM Linux in a folder. In: a folder, and a network or what an earlier call left there. Out: a command that is
Python on an emulated 64-bit ARM processor, with what the tests need; `tests.arm.run` runs them by it.

Nothing is installed on this system: Debian's packages are unpacked into the folder, wheels are put beside them, and the
emulator (QEMU's, for programs) looks there first for each file that a program opens. It works where apt-get does."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

from tests.arm.machines import MACHINES

TREE = Path(__file__).resolve().parents[2]
DEBIAN, MIRROR = "bookworm", "http://deb.debian.org/debian"
KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"
PYTHON = "python3.11"
# Of the packages of tests, those whose tests are run here.
FOR_TESTS = ("pytest", "pytest-xdist", "hypothesis", "scipy")
HOSTS = {"x86_64": "amd64", "aarch64": "arm64"}


def default_folder() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(os.environ.get("TILEWRIGHT_ARM_DIR") or Path(cache) / "tilewright-arm")


def prepare(folder: Path, machine: str) -> Path:
    """The command, after whatever is missing has been made."""
    _once(folder / "packages", _unpack_packages)
    _once(folder / "site", _put_wheels)
    return _write_command(folder, machine)


def _once(made: Path, make: Callable[[Path], None]) -> None:
    """What is there is whole: it gets its name last."""
    if made.exists():
        return
    partial = made.with_name(made.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    make(partial)
    partial.rename(made)


def _unpack_packages(folder: Path) -> None:
    """Python and all that it depends on, as an empty ARM system would get them, and the emulator for this one."""
    state = folder / "apt"
    for name in ("lists/partial", "archives/partial"):
        (state / name).mkdir(parents=True)
    (state / "status").touch()
    (state / "sources.list").write_text(f"deb [signed-by={KEYS}] {MIRROR} {DEBIAN} main\n")
    host = HOSTS[platform.machine()]
    places = {
        "Dir::State": state,
        "Dir::State::lists": state / "lists",
        "Dir::State::status": state / "status",
        "Dir::Cache": state,
        "Dir::Cache::archives": state / "archives",
        "Dir::Etc::sourcelist": state / "sources.list",
        "Dir::Etc::sourceparts": "/dev/null",
        "APT::Architecture": "arm64",
        "APT::Architectures::": "arm64",
        "APT::Sandbox::User": "root",
    }
    settings = [f"-o{key}={value}" for key, value in places.items()] + [f"-oAPT::Architectures::={host}"]
    apt = ["apt-get", "-qq", *settings]
    _run([*apt, "update"])
    _run([*apt, "install", "-y", "--no-install-recommends", "--download-only", PYTHON, "libstdc++6"])
    for package in sorted((state / "archives").glob("*.deb")):
        _run(["dpkg-deb", "-x", str(package), str(folder / "root")])
    _run([*apt, "download", f"qemu-user-static:{host}"], state)
    _run(["dpkg-deb", "-x", str(next(state.glob("qemu-user-static_*.deb"))), str(folder / "emulator")])
    shutil.rmtree(state)


def _put_wheels(folder: Path) -> None:
    project = tomllib.loads((TREE / "pyproject.toml").read_text())["project"]
    further = [line for line in project["optional-dependencies"]["dev"] if line.split(">")[0] in FOR_TESTS]
    systems = [f"manylinux_2_{version}_aarch64" for version in (17, 27, 28)] + ["manylinux2014_aarch64"]
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command += ["--target", str(folder), "--only-binary=:all:", "--implementation", "cp", "--python-version", "3.11"]
    command += [word for system in systems for word in ("--platform", system)]
    _run([*command, *project["dependencies"], *further])


def _write_command(folder: Path, name: str) -> Path:
    """A file tree that is Debian's, but for what Linux says of the processor; and the script that starts Python in it,
    by which Python also knows itself, because tests start further ones."""
    machine, place = MACHINES[name], folder / name
    (place / "root/proc").mkdir(parents=True, exist_ok=True)
    for entry in (folder / "packages/root").iterdir():
        link = place / "root" / entry.name
        if not link.is_symlink():
            link.symlink_to(entry)
    (place / "root/proc/cpuinfo").write_text(machine.cpuinfo())
    (place / "start").mkdir(exist_ok=True)
    command = place / "python"
    (place / "start/sitecustomize.py").write_text(f"import sys\n\nsys.executable = {str(command)!r}\n")
    paths = f"{place / 'start'}:{folder / 'site'}:{TREE}"
    emulator = folder / "packages/emulator/usr/bin/qemu-aarch64-static"
    command.write_text(
        f'#!/bin/sh\nexec "{emulator}" -cpu {machine.emulated} -L "{place / "root"}" -E PYTHONPATH="{paths}"'
        f' -E PYTHONPYCACHEPREFIX="{folder / "bytecode"}" "{folder / "packages/root/usr/bin" / PYTHON}" "$@"\n'
    )
    command.chmod(0o755)
    return command


def _run(command: list[str], where: Path | None = None) -> None:
    subprocess.run(command, check=True, cwd=where)


__all__ = ["default_folder", "prepare"]
