"""Names and weights of models. In: any object with tensors, a dict from names to tensors, a path. Out: state dicts,
files, a model with other weights. A model is plain Python: tensors, and objects, dicts, lists and tuples of them.
Loading is atomic: a dict or file that does not match changes nothing."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from typing import Any

from tilewright.base.errors import StateError
from tilewright.graph import build
from tilewright.graph.ops import Ops
from tilewright.nn.buffers import as_buffer
from tilewright.nn.formats.archives import tar_extract, zip_extract
from tilewright.nn.formats.gguf_file import gguf_load
from tilewright.nn.formats.safetensors_file import safe_load, safe_load_metadata, safe_save
from tilewright.nn.formats.torch_file import torch_load
from tilewright.runtime.buffer import Buffer, buffer_node, buffer_of
from tilewright.tensor.core.memory import protect_borrowed
from tilewright.tensor.tensor import Tensor

__all__ = [
    "as_buffer",
    "get_parameters",
    "get_state_dict",
    "gguf_load",
    "load_state_dict",
    "safe_load",
    "safe_load_metadata",
    "safe_save",
    "tar_extract",
    "torch_load",
    "zip_extract",
]

# Types whose attributes are code, not parts of a model.
OPAQUE = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType)
_SHOWN = 8


# ---------------------------------------------------------------- names


def get_state_dict(obj: Any, prefix: str = "") -> dict[str, Tensor]:
    """Every tensor of an object by name: attributes, keys and positions joined with dots, as in torch. `prefix` is put
    before every name. A tensor that is reachable in two ways has two names."""
    found: dict[str, Tensor] = {}
    _collect(obj, prefix.removesuffix("."), found, set())
    return found


def get_parameters(obj: Any) -> list[Tensor]:
    """Every tensor of an object, each once. An optimiser trains all of them but integers and buffers."""
    return list({id(tensor): tensor for tensor in get_state_dict(obj).values()}.values())


def _collect(value: Any, name: str, found: dict[str, Tensor], path: set[int]) -> None:
    if isinstance(value, Tensor):
        found[name] = value
        return
    # Wrappers of functions, such as `jit`, have tensors that are not weights. Cycles of references are not followed.
    if isinstance(value, OPAQUE) or hasattr(value, "__wrapped__") or id(value) in path:
        return
    path.add(id(value))
    for key, part in parts_of(value):
        _collect(part, f"{name}.{key}" if name else str(key), found, path)
    path.remove(id(value))


def parts_of(value: Any) -> Iterator[tuple[Any, Any]]:
    """The parts of an object, by name."""
    if isinstance(value, Mapping):
        yield from value.items()
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        yield from zip(value._fields, value)
    elif isinstance(value, list | tuple):
        yield from enumerate(value)
    else:
        left_out = getattr(type(value), "not_in_state", ())
        yield from (part for part in getattr(value, "__dict__", {}).items() if part[0] not in left_out)
        for kind in type(value).__mro__:
            slots = vars(kind).get("__slots__", ())
            for slot in (slots,) if isinstance(slots, str) else slots:
                if slot not in ("__dict__", "__weakref__") and hasattr(value, slot):
                    yield slot, getattr(value, slot)


# ---------------------------------------------------------------- loading into a model


def load_state_dict(model: Any, state_dict: Mapping[str, Tensor], strict: bool = True) -> None:
    """Assigns the values of a state dict to the tensors of a model. Every name, shape and dtype is checked first, so
    that a dict that does not match changes nothing. `strict=False` ignores names that only one side has. Values that
    are mapped from a file stay mapped: a model is in memory once, and is copied when it is first changed.
    """
    if not isinstance(state_dict, Mapping):
        message = f"a {type(state_dict).__name__} is not a state dict"
        raise StateError("load_state_dict", message, "give a dict from names to tensors, such as safe_load(path)")
    targets = get_state_dict(model)
    _check_fits(targets, state_dict, strict)
    for name, target in targets.items():
        if name in state_dict:
            _give_value(target, state_dict[name])


def _check_fits(targets: Mapping[str, Tensor], state_dict: Mapping[str, Tensor], strict: bool) -> None:
    """Raises an error that lists all mismatches."""
    differing = []
    for name in targets.keys() & state_dict.keys():
        target = targets[name]
        value: Any = state_dict[name]
        if not isinstance(value, Tensor):
            differing.append(f"{name} (a {type(value).__name__})")
        elif value.shape != target.shape or value.dtype is not target.dtype:
            has, wants = (f"{tensor.dtype.name}{list(tensor.shape)}" for tensor in (value, target))
            differing.append(f"{name} ({has}, the model has {wants})")
    kinds = [("differing", sorted(differing))]
    if strict:
        kinds += [("missing", [name for name in targets if name not in state_dict])]
        kinds += [("unexpected", [str(name) for name in state_dict if name not in targets])]
    wrong = [f"{kind}: {_listed(names)}" for kind, names in kinds if names]
    if not wrong:
        return
    remedy = "take the weights of this model; cast or reshape those that differ"
    if strict and not differing:
        remedy += "; strict=False leaves out names that only one side has"
    raise StateError("load_state_dict", f"the state dict does not fit, nothing is loaded; {'; '.join(wrong)}", remedy)


def _listed(names: list[str]) -> str:
    rest = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {rest} more" if rest > 0 else "")


def _give_value(target: Tensor, value: Tensor) -> None:
    if target._ancestors:
        # A view of another tensor: the value is written through to it.
        target.assign(Tensor(value).shard_like(target))
    else:
        target.replace(_separate(Tensor(value).shard_like(target)))


def _separate(value: Tensor) -> Tensor:
    """The value as a new node: two weights that are loaded from one tensor stay separate, since gradients identify
    parameters by their nodes."""
    root = build.stored_root(value.uop)
    memory = buffer_of(root).memory if root.op is Ops.BUFFER else None
    made = Tensor._from_uop(value.uop, value.device)
    if getattr(memory, "readonly", False):
        # Read-only bytes of a mapped file are shared, not copied.
        node = buffer_node(Buffer(root.arg.device, value.dtype, value.numel(), memory))
        protect_borrowed(node)
        made.uop = build.reshape(node, value.shape)
    elif value.numel():
        made._give_memory()
    return made
