"""docs/api/tensor.txt, the list of public names, read. In: its lines, such as `Tensor.clamp(min_=None, max_=None)`.
Out: each name of `Tensor` and of `nn` with its parameters and their defaults. test_coverage.py compares the package,
and the op table, with it.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
API_LIST = ROOT / "docs" / "api" / "tensor.txt"
NO_DEFAULT = "no default"

# name -> parameter -> default, or NO_DEFAULT. A property has no parameters, and neither has a line that ends in (...).
Listing = dict[str, dict[str, Any]]


def listed_names(owner: str, text: str | None = None) -> Listing:
    """Every name of an owner, `Tensor` or `nn`, in the list."""
    found: Listing = {}
    for line in (API_LIST.read_text() if text is None else text).splitlines():
        if line.startswith(owner):
            for name, parameters in re.findall(rf"{owner}\.([\w.]+)(?:\(((?:[^()]|\([^()]*\))*)\))?", line):
                found.setdefault(name, {}).update(parameters_of(parameters))
    return found


def parameters_of(text: str) -> dict[str, Any]:
    """`x, *args, dim=0` as {"x": NO_DEFAULT, "dim": 0}: what any number of arguments is called tells nothing."""
    if text == "...":
        return {}
    definition = ast.parse(f"def f({text}): ...").body[0]
    assert isinstance(definition, ast.FunctionDef)
    given = definition.args
    plain = [NO_DEFAULT] * (len(given.args) - len(given.defaults)) + [value_of(node) for node in given.defaults]
    keywords = [NO_DEFAULT if node is None else value_of(node) for node in given.kw_defaults]
    names = [argument.arg for argument in (*given.args, *given.kwonlyargs)]
    return dict(zip(names, plain + keywords, strict=True))


def value_of(node: ast.expr) -> Any:
    """A literal's value; the text of anything else, such as `dtypes.int`."""
    try:
        return ast.literal_eval(node)
    except ValueError:
        return ast.unparse(node)
