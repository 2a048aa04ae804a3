"""Aliases. In: a class with the operations. Out: the same class with the names that torch, NumPy and the array API have
for them. A new alias is one line of the table and shares the original's docstring."""

from __future__ import annotations

from collections.abc import Collection

# alias -> method
ALIASES = {
    "absolute": "abs",
    "arccos": "acos",
    "arccosh": "acosh",
    "arcsin": "asin",
    "arcsinh": "asinh",
    "arctan": "atan",
    "arctan2": "atan2",
    "arctanh": "atanh",
    "binary_cross_entropy": "binary_crossentropy",
    "binary_cross_entropy_with_logits": "binary_crossentropy_logits",
    "bitwise_left_shift": "lshift",
    "bitwise_right_shift": "rshift",
    "concat": "cat",
    "concatenate": "cat",
    "conv3d": "conv1d",
    "conv_transpose1d": "conv_transpose2d",
    "conv_transpose3d": "conv_transpose2d",
    "divide": "div",
    "fix": "trunc",
    "floor_divide": "floordiv",
    "greater": "gt",
    "greater_equal": "ge",
    "less": "lt",
    "less_equal": "le",
    "moveaxis": "movedim",
    "multiply": "mul",
    "ndimension": "dim",
    "negative": "neg",
    "nelement": "numel",
    "not_equal": "ne",
    "remainder": "mod",
    "sgn": "sign",
    "subtract": "sub",
    "swapaxes": "transpose",
    "swapdims": "transpose",
    "trapz": "trapezoid",
    "true_divide": "div",
}


def add_aliases(owner: type, names: Collection[str]) -> list[str]:
    """Gives those of the operations that are in `names` their aliases, which it returns."""
    found = [alias for alias, original in ALIASES.items() if original in names]
    for alias in found:
        setattr(owner, alias, getattr(owner, ALIASES[alias]))
    return found
