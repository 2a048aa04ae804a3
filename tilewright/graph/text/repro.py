"""Repro files. In: a kernel or the graph of a whole schedule, with the inputs it fails on and what it was compiled for.
Out: one text that any machine reads back as the same nodes and bytes. `engine/compilation/verify.py` writes one where a
kernel differs, debug/ writes, replays and reduces them.

    tilewright repro 1
    kind: schedule
    device: CPU
    ...
    [graph]
    %0 = PARAM float32 ParamArg(0, 6, "")
    [input 0 float32 6]
    eJxjYGBgYGRkZGL...
    [source CPU 5f0c...]
      the text that the kernel had when `tilewright replay --update` was called
"""

from __future__ import annotations

import base64
import os
import platform
import textwrap
import zlib
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata

from tilewright.base.config import DECLARATIONS, options
from tilewright.base.dtype import DType, to_dtype
from tilewright.base.errors import ParseError, TilewrightError
from tilewright.base.option import Value
from tilewright.base.records import field, record
from tilewright.base.version import __version__
from tilewright.graph.ops import Ops
from tilewright.graph.sizes import variable_bounds
from tilewright.graph.symbolic import capacity
from tilewright.graph.text.parse import parse
from tilewright.graph.text.show import show
from tilewright.graph.uop import UOp
from tilewright.graph.walk import toposort

FIRST_LINE = "tilewright repro 1"
KINDS = ("kernel", "schedule")
SUFFIX = ".repro"
# Larger contents are left to the seed: a file is to be mailed, and a failure rarely needs this much.
MAX_INPUT_BYTES = 1 << 24
# What a repro does not carry: where files are, and how much is printed or kept.
_NOT_CARRIED = ("DEBUG", "DEVICE", "PLAN_CACHE", "SHOW_PASS", "CACHE", "CACHE_MEGABYTES", "BEAM_SECONDS", "PROFILE")
_PACKAGES = ("numpy", "llvmlite")


@record
class Input:
    """The memory behind the PARAM of this slot. Where `data` is None it is made from the seed."""

    slot: int
    dtype: DType
    size: int
    data: bytes | None = None


@record
class Repro:
    """`graph` is a SINK: a kernel, whose `applied` opts count where `has_opts`, or one whose sources are the values to
    compute, over PARAMs. `values` are those of the variables in its sizes; `sources` are texts of its kernels by device
    and digest of the target."""

    kind: str
    graph: UOp
    device: str
    inputs: tuple[Input, ...]
    seed: int = 0
    has_opts: bool = False
    options: Mapping[str, Value] = field(default_factory=dict)
    line: str = ""
    note: str = ""
    target: str = ""
    versions: str = ""
    sources: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, int] = field(default_factory=dict)

    @property
    def nodes(self) -> int:
        """Nodes of the graph, without the SINK that holds its roots together."""
        return len(toposort(self.graph)) - 1


def carried_options() -> dict[str, Value]:
    """The options that are not at their defaults and change what is computed or how."""
    found = ((name, getattr(options, name), option.default) for name, option in DECLARATIONS.items())
    is_folder = ("_DIR", "_FOLDER")
    return {
        name: value
        for name, value, default in found
        if value != default and name not in _NOT_CARRIED and not name.endswith(is_folder)
    }


def versions_text() -> str:
    """The versions that a result may depend on."""
    packages = []
    for name in _PACKAGES:
        try:
            packages.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            packages.append(f"{name} missing")
    machine = f"Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    return ", ".join([f"tilewright {__version__}", machine, *packages])


def inputs_of(graph: UOp, contents: Mapping[int, bytes] | None = None) -> tuple[Input, ...]:
    """An entry per PARAM, of its greatest size; the bytes by slot, from the seed where a slot has none."""
    params = {node.arg.slot: node for node in toposort(graph) if node.op is Ops.PARAM}
    held = contents or {}
    return tuple(
        Input(slot, node.dtype, capacity(node.arg.size), held.get(slot)) for slot, node in sorted(params.items())
    )


# ---------------------------------------------------------------- writing


def write_repro(repro: Repro) -> str:
    """The text of a repro file."""
    settings = " ".join(f"{name}={value}" for name, value in repro.options.items())
    header = {
        "kind": repro.kind,
        "device": repro.device,
        "seed": str(repro.seed),
        "opts": "listed" if repro.has_opts else "chosen",
        "options": settings,
        "values": " ".join(f"{name}={value}" for name, value in repro.values.items()),
        "line": repro.line,
        "note": repro.note,
        "target": repro.target,
        "versions": repro.versions or versions_text(),
    }
    lines = [FIRST_LINE, *(f"{name}: {' '.join(text.split())}" for name, text in header.items() if text)]
    lines += ["", "[graph]", show(repro.graph).rstrip("\n")]
    for given in repro.inputs:
        lines.append(f"[input {given.slot} {given.dtype.name} {given.size}]")
        if given.data is None or len(given.data) > MAX_INPUT_BYTES:
            lines.append("seed")
        else:
            lines += textwrap.wrap(base64.b64encode(zlib.compress(given.data, 9)).decode(), 120)
    for key, text in repro.sources.items():
        lines.append(f"[source {key}]")
        lines += [f"  {line}" for line in text.splitlines()]
    return "\n".join(lines) + "\n"


def save_repro(repro: Repro, folder: str, name: str) -> str:
    """Writes a file that no other has the name of; its path."""
    os.makedirs(folder, exist_ok=True)
    plain = "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in name)[:80]
    number = 0
    while True:
        path = os.path.join(folder, f"{plain}{'' if not number else f'-{number}'}{SUFFIX}")
        try:
            with open(path, "x", encoding="utf-8") as file:
                file.write(write_repro(repro))
            return path
        except FileExistsError:
            number += 1


# ---------------------------------------------------------------- reading


def read_repro(text: str) -> Repro:
    """The repro that a text holds; a ParseError says what is wrong with it."""
    if not text.startswith(FIRST_LINE + "\n"):
        raise _error("it does not begin with the line " + repr(FIRST_LINE))
    header, *sections = list(_sections(text))
    facts = dict(_header_line(line) for line in header[1][1:] if line.strip())
    if facts.get("kind") not in KINDS or "device" not in facts:
        raise _error("the lines `kind:` (kernel or schedule) and `device:` are needed")
    graph: UOp | None = None
    inputs: list[Input] = []
    sources: dict[str, str] = {}
    for title, lines in sections:
        words = title.split(maxsplit=1)
        if words[0] == "graph":
            graph = parse("\n".join(lines) + "\n")
        elif words[0] == "input":
            inputs.append(_input(title, lines))
        elif words[0] == "source" and len(words) == 2:
            sources[words[1]] = "\n".join(line[2:] for line in lines)
        else:
            raise _error(f"no section is called [{title}]")
    if graph is None or graph.op is not Ops.SINK:
        raise _error("it needs a section [graph] whose last node is a SINK")
    missing = {entry.slot for entry in inputs_of(graph)} - {entry.slot for entry in inputs}
    if missing:
        raise _error(f"PARAM {min(missing)} has no section [input {min(missing)} dtype size]")
    return Repro(
        kind=facts["kind"],
        graph=graph,
        device=facts["device"],
        inputs=tuple(sorted(inputs, key=lambda entry: entry.slot)),
        seed=_number("seed", facts.get("seed", "0")),
        has_opts=facts.get("opts") == "listed",
        options=_options(facts.get("options", "")),
        line=facts.get("line", ""),
        note=facts.get("note", ""),
        target=facts.get("target", ""),
        versions=facts.get("versions", ""),
        sources=sources,
        values=_values(facts.get("values", ""), graph),
    )


def load_repro(path: str) -> Repro:
    """The repro in a file."""
    try:
        with open(path, encoding="utf-8") as file:
            return read_repro(file.read())
    except OSError as error:
        raise _error(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise _error(f"{path} is not text") from error


def _sections(text: str) -> Iterator[tuple[str, list[str]]]:
    title, lines = "", list[str]()
    for line in text.splitlines():
        if line.startswith("[") and line.endswith("]") and len(line) > 2:
            yield title, lines
            title, lines = line[1:-1], []
        else:
            lines.append(line)
    yield title, lines


def _header_line(line: str) -> tuple[str, str]:
    name, colon, value = line.partition(":")
    if not colon:
        raise _error(f"{line!r} is not a line `name: value`")
    return name.strip(), value.strip()


def _input(title: str, lines: Sequence[str]) -> Input:
    words = title.split()
    if len(words) != 4:
        raise _error(f"[{title}] is not [input SLOT DTYPE SIZE]")
    try:
        slot, dtype, size = int(words[1]), to_dtype(words[2]), int(words[3])
        text = "".join(lines).strip()
        data = None
        if text != "seed":
            # No more than was said, and one byte to tell that there is more.
            limit = size * dtype.itemsize + 1
            data = zlib.decompressobj().decompress(base64.b64decode(text, validate=True), limit)
    except (ValueError, zlib.error, TilewrightError) as error:
        raise _error(f"[{title}] cannot be read: {error}") from error
    if data is not None and len(data) != size * dtype.itemsize:
        raise _error(f"[{title}] holds {len(data)} bytes and not {size * dtype.itemsize}")
    return Input(slot, dtype, size, data)


def _options(text: str) -> dict[str, Value]:
    """Those that this version has: a file may be older than an option, or newer."""
    found: dict[str, Value] = {}
    for word in text.split():
        name, _, value = word.partition("=")
        if name in DECLARATIONS:
            found[name] = DECLARATIONS[name].parse(value)
    return found


def _values(text: str, graph: UOp) -> dict[str, int]:
    """Of each variable of the graph, within its bounds; the greatest of one that is not named."""
    given = {name: _number(name, value) for name, _, value in (word.partition("=") for word in text.split())}
    found = {}
    for name, (least, greatest) in variable_bounds([graph]).items():
        found[name] = given.get(name, greatest)
        if not least <= found[name] <= greatest:
            raise _error(f"{name} is {found[name]}, and its bounds are {least} to {greatest}")
    return found


def _number(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise _error(f"{name} is {text!r}, which is not an integer") from error


def _error(reason: str) -> ParseError:
    return ParseError("read a repro file", reason, "write one with `tilewright dump`, or with `VERIFY=1`")
