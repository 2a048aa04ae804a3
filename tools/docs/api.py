"""The API reference. In: the public names of the package, their signatures and docstrings. Out: the pages of docs/api.

A page is a list of sections; a section is a heading and the names below it. `undocumented_names` lists public names
without a docstring, of which a test allows none."""

from __future__ import annotations

import enum
import importlib
import inspect
import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any, NamedTuple

import tilewright
from tilewright import AddrSpace, AxisType, OptOps, Tensor, UOp
from tilewright.base import errors
from tilewright.kernel.transforms.registry import TRANSFORMS

NOTE = "Made from the docstrings by `make docs`."


# Attributes have no docstring of their own.
ATTRIBUTES = {"grad": "The sum of the gradients that `backward` has computed, or None."}


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
    """`(axis=None, keepdim=False)`: names and defaults, without `self`."""
    if inspect.isclass(function) and is_made_by_c(function):
        return "(...)"  # what such a class tells of itself depends on the version of Python
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())
    if is_method and parameters and parameters[0].name in ("self", "cls"):
        parameters = parameters[1:]
    plain = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in parameters]
    return re.sub(r"<([\w.]+): [^>]*>", r"\1", str(inspect.Signature(plain)))  # members of enumerations


def is_made_by_c(owner: type) -> bool:
    """Whether instances are made by functions that are not written in Python, such as those of list."""
    makers = {owner.__init__, owner.__new__} - {object.__init__, object.__new__}
    return bool(makers) and not any(hasattr(maker, "__code__") for maker in makers)


def document_of(value: Any) -> str:
    """The docstring, each paragraph on lines of its own; empty where there is none of its own."""
    doc = inspect.getdoc(value)
    is_inherited = type(value).__module__ == "builtins" and doc == inspect.getdoc(type(value))
    return "" if doc is None or is_inherited else doc.strip()


def entry_of(owner: Any, name: str, is_method: bool = False) -> Entry:
    """A name of a class or a module."""
    value = getattr(owner, name)
    held = inspect.getattr_static(owner, name, value)  # a module's names may come from its `__getattr__`
    if isinstance(held, property) or name in ATTRIBUTES:
        return Entry(name, "", ATTRIBUTES.get(name) or document_of(held))
    if inspect.isclass(value):
        has_parameters = not issubclass(value, BaseException | enum.Enum)
        return Entry(name, signature_text(value, True) if has_parameters else "", document_of(value))
    if callable(value):
        return Entry(name, signature_text(value, is_method and not isinstance(held, staticmethod)), document_of(value))
    return Entry(name, "", document_of(value))


def public_names(module: ModuleType) -> list[str]:
    """The names of `__all__`, or else what the module itself defines, sorted."""
    names = getattr(module, "__all__", None)
    if names is None:
        names = [name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
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
    fields = getattr(owner, "__slots__", ())  # the docstring of the class tells them
    for name in sorted(name for name in dir(owner) if not name.startswith("_") and name not in fields):
        by_module.setdefault(defining_module(owner, name), []).append(entry_of(owner, name, is_method=True))
    sections = []
    for module_name, entries in sorted(by_module.items()):
        last = module_name.rpartition(".")[2]
        heading = owner.__name__ if last == owner.__name__.lower() else last.replace("_", " ").capitalize()
        module = importlib.import_module(module_name)
        sections.append(Section(heading, first_sentence(document_of(module)), entries))
    return sections


def enum_section(owner: type[enum.Enum]) -> Section:
    """The members of an enumeration, which its docstring explains."""
    members = ", ".join(f"`{member.name}`" for member in owner)
    return Section(owner.__name__, f"{document_of(owner)}\n\n{members}", [])


def transform_section() -> Section:
    """Every kernel transform, with the docstring of the file that has it."""
    entries = []
    for op, transform in TRANSFORMS.items():
        module = importlib.import_module(inspect.unwrap(transform.check).__module__)
        entries.append(Entry(op.name, "", document_of(module)))
    return Section("OptOps", document_of(OptOps), entries)


def error_section() -> Section:
    """Every class of the tree of errors, as base/errors/__init__.py draws it."""
    return Section("tilewright.base.errors", "", [entry_of(errors, name) for name in sorted(errors.__all__)])


def modules(*names: str) -> list[Section]:
    """A section for each module of the package."""
    return [module_section(importlib.import_module(f"tilewright.{name}")) for name in names]


def pages() -> dict[str, tuple[str, list[Section]]]:
    """The title and the sections of each page, by file name."""
    of_tensors, of_kernels = {"Tensor"}, {"AddrSpace", "AxisType", "KernelInfo", "Ops", "Opt", "OptOps", "UOp"}
    rest = [name for name in public_names(tilewright) if name not in of_tensors | of_kernels]
    top = [entry_of(tilewright, name) for name in rest if not isinstance(getattr(tilewright, name), ModuleType)]
    tensor = Section("Making one", "", [entry_of(tilewright, "Tensor")])
    records = Section("Records", "", [entry_of(tilewright, name) for name in ("KernelInfo", "Opt")])
    node = Section("The node", "", [entry_of(tilewright, "UOp")])
    kernels = [
        node,
        *method_sections(UOp),
        records,
        enum_section(AddrSpace),
        enum_section(AxisType),
        transform_section(),
    ]
    return {
        "tensor.md": ("Tensor", [tensor, *method_sections(Tensor)]),
        "package.md": ("The package", [Section("tilewright", "", top), *modules("fft", "linalg", "debug")]),
        "nn.md": ("Layers, optimisers, weights, datasets", modules("nn", "nn.optim", "nn.state", "nn.datasets")),
        "kernels.md": ("Writing kernels", kernels),
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
    """A name in bold, and its docstring as it is written; what is indented there is code."""
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
        if not entry.doc
    ]
