"""The API reference. In: the public names of the package, their signatures and docstrings. Out: the pages of docs/api.

A page is a list of sections; a section is a heading and the names below it. Every public name must have a docstring:
`undocumented_names` lists those that have none."""

from __future__ import annotations

import enum
import importlib
import inspect
import re
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any, NamedTuple

import tilewright
from tilewright import AddrSpace, AxisType, KernelInfo, Opt, OptOps, Tensor, UOp
from tilewright.base import errors

NOTE = "Made from the docstrings by `make docs`."
# Attributes of a tensor that are set in `__init__` and have no docstring of their own.
ATTRIBUTES = {"grad": "The gradient that `backward` has added up, or None.", "requires_grad": "Whether `backward` fills `grad`."}


class Entry(NamedTuple):
    """A public name as a page shows it."""

    name: str
    signature: str
    doc: str


class Section(NamedTuple):
    heading: str
    introduction: str
    entries: list[Entry]


# ---------------------------------------------------------------- one name


def signature_text(function: Any, is_method: bool) -> str:
    """`(axis: int | None = None)`: annotations as they are written, `Any` and the result left out, `self` too."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return "(...)"
    parameters = list(signature.parameters.values())
    if is_method and parameters and parameters[0].name in ("self", "cls"):
        parameters = parameters[1:]
    plain = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in parameters]
    text = str(inspect.Signature(plain))
    return re.sub(r"<[\w.]*?(\w+) object at 0x[0-9a-f]+>", r"\1", text)


def document_of(value: Any) -> str:
    """The docstring, each paragraph on lines of its own; empty where there is none of its own."""
    doc = inspect.getdoc(value)
    return inspect.cleandoc(doc).strip() if doc and doc != type(value).__doc__ else ""


def entry_of(owner: Any, name: str, is_method: bool = False) -> Entry:
    """A name of a class or a module."""
    value = getattr(owner, name)
    held = inspect.getattr_static(owner, name, value)  # a module's names may come from its `__getattr__`
    if isinstance(held, property):
        return Entry(name, "", document_of(held))
    if inspect.isclass(value):
        has_parameters = not issubclass(value, BaseException | enum.Enum)
        return Entry(name, signature_text(value, True) if has_parameters else "", document_of(value))
    if callable(value):
        return Entry(name, signature_text(value, is_method and not isinstance(held, staticmethod)), document_of(value))
    return Entry(name, "", document_of(value))


def public_names(owner: Any) -> list[str]:
    """The names of `__all__`, or those that do not begin with an underscore, sorted."""
    names: Iterable[str] = getattr(owner, "__all__", None) or vars(owner)
    return sorted(name for name in names if not name.startswith("_"))


def first_sentence(doc: str) -> str:
    found = re.match(r"(.+?[.:])(?:\s|$)", " ".join(doc.split()))
    return found[1].rstrip(":") if found else doc


# ---------------------------------------------------------------- pages


def module_section(module: ModuleType) -> Section:
    """What a module makes public and defines."""
    entries = [
        entry_of(module, name) for name in public_names(module) if not isinstance(getattr(module, name), ModuleType)
    ]
    return Section(module.__name__, first_sentence(document_of(module)), entries)


def defining_module(owner: type, name: str) -> str:
    """Where a method is written, behind the decorators that it is wrapped in."""
    held = inspect.getattr_static(owner, name)
    if isinstance(held, property):
        held = held.fget
    function = inspect.unwrap(getattr(held, "__func__", held))
    for base in owner.__mro__:
        if name in vars(base) and not callable(function):
            return base.__module__
    return str(getattr(function, "__module__", owner.__module__))


def method_sections(owner: type) -> list[Section]:
    """The public methods of a class, by the module that defines them."""
    by_module: dict[str, list[Entry]] = {}
    for name in sorted(name for name in dir(owner) if not name.startswith("_")):
        by_module.setdefault(defining_module(owner, name), []).append(entry_of(owner, name, is_method=True))
    sections = []
    for module_name, entries in sorted(by_module.items()):
        heading = module_name.rpartition(".")[2].replace("_", " ").capitalize()
        module = importlib.import_module(module_name)
        sections.append(Section(heading, first_sentence(document_of(module)), entries))
    return sections


def enum_section(owner: type[enum.Enum]) -> Section:
    """The members of an enumeration, with the comment-like docstring of the class."""
    return Section(owner.__name__, document_of(owner), [Entry(member.name, "", "") for member in owner])


def error_section() -> Section:
    """Every class of the tree of errors, as base/errors.py draws it."""
    classes = [
        name
        for name, value in vars(errors).items()
        if inspect.isclass(value) and issubclass(value, BaseException) and value.__module__ == errors.__name__
    ]
    return Section("tilewright.base.errors", "", [entry_of(errors, name) for name in sorted(classes)])


def pages() -> dict[str, tuple[str, list[Section]]]:
    """The title and the sections of each page, by file name."""
    package = [name for name in public_names(tilewright) if not isinstance(getattr(tilewright, name), ModuleType)]
    elsewhere = {"AddrSpace", "AxisType", "KernelInfo", "Opt", "OptOps", "Ops", "Tensor", "UOp"}
    top = [entry_of(tilewright, name) for name in package if name not in elsewhere]
    modules = {name: importlib.import_module(f"tilewright.{name}") for name in ("fft", "linalg", "debug")}
    nn_modules = [importlib.import_module(f"tilewright.nn{name}") for name in ("", ".optim", ".state", ".datasets")]
    records = [entry_of(tilewright, record.__name__) for record in (KernelInfo, Opt)]
    return {
        "tensor.md": ("Tensor", [Section("Making one", "", [entry_of(tilewright, "Tensor")]), *method_sections(Tensor)]),
        "package.md": ("The package", [Section("tilewright", "", top), *map(module_section, modules.values())]),
        "nn.md": ("Layers, optimisers, weights, datasets", [module_section(module) for module in nn_modules]),
        "kernels.md": (
            "Writing kernels",
            [*method_sections(UOp), Section("Records", "", records), *map(enum_section, (AddrSpace, AxisType, OptOps))],
        ),
        "errors.md": ("Errors", [error_section()]),
    }


def page_text(title: str, sections: list[Section]) -> str:
    lines = [f"# {title}", "", NOTE]
    for section in sections:
        lines += ["", f"## {section.heading}", ""]
        if section.introduction:
            lines += [section.introduction, ""]
        for entry in section.entries:
            lines += list(entry_lines(entry))
    return "\n".join(lines).rstrip() + "\n"


def entry_lines(entry: Entry) -> Iterator[str]:
    """A name in bold, and its docstring as it is written: paragraphs are indented code only where they were."""
    yield f"**`{entry.name}{entry.signature}`**"
    if entry.doc:
        yield ""
        yield entry.doc
    yield ""


def index_text(found: dict[str, tuple[str, list[Section]]]) -> str:
    lines = ["# API", "", NOTE + " `tensor.txt` is the list of names that the op table is held to.", ""]
    lines += ["| page | what is on it |", "|---|---|"]
    for name, (title, sections) in found.items():
        count = sum(len(section.entries) for section in sections)
        headings = ", ".join(section.heading for section in sections)
        lines.append(f"| [{title}]({name}) | {count} names: {headings} |")
    return "\n".join(lines) + "\n"


def api_pages() -> dict[str, str]:
    """The texts of docs/api, by path."""
    found = pages()
    texts = {f"docs/api/{name}": page_text(title, sections) for name, (title, sections) in found.items()}
    return {"docs/api/README.md": index_text(found), **texts}


def undocumented_names() -> list[str]:
    """Public names without a docstring."""
    return [
        f"{name}: {entry.name}"
        for name, (_, sections) in pages().items()
        for section in sections
        for entry in section.entries
        if not entry.doc and not section.introduction.startswith("An enum")
    ]
