"""The members of classes, for the walk over what a call can read (`reach`). In: a class. Out: the members of its body
that may be state; and those of all classes that a tensor is of, which every walk visits."""

from __future__ import annotations

import gc
import operator
import types
from itertools import chain
from typing import Any

from tilewright.base.records import NamedTuple
from tilewright.engine.jit import known_python
from tilewright.engine.jit.observe import origin_of


class TensorClasses(NamedTuple):
    """The classes of a tensor, along its MRO. They have a thousand members and every walk visits them, so the members
    that may be state are found once, and again when any member was replaced."""

    bases: dict[int, type]  # by id, without the class itself
    owners: dict[int, type]  # by the id of the body
    bodies: list[dict[str, Any]]
    values: list[Any]  # of all bodies, in order
    members: list[tuple[type, dict[str, Any], str, bool]]  # the class, its body, the name, whether it is a function

    def is_current(self) -> bool:
        count = sum(map(len, self.bodies))
        present = chain.from_iterable(map(dict.values, self.bodies))
        return count == len(self.values) and all(map(operator.is_, self.values, present))


_tensor_classes: dict[type, TensorClasses] = {}


def tensor_classes(kind: type) -> TensorClasses:
    known = _tensor_classes.get(kind)
    if known is None or not known.is_current():
        kinds = [base for base in kind.__mro__ if known_python.is_python_class(base)]
        bodies = list(map(body_of, kinds))
        values = [value for body in bodies for value in body.values()]
        members = [
            (base, body, key, known_python.wrapped_functions(member) is not None)
            for base, body in zip(kinds, bodies)
            for key, member in members_of(body, is_of_tensors=True)
        ]
        bases = {id(base): base for base in kinds if base is not kind}
        owners = {id(body): base for base, body in zip(kinds, bodies)}
        known = _tensor_classes[kind] = TensorClasses(bases, owners, bodies, values, members)
    return known


def body_of(kind: type) -> dict[str, Any]:
    (body,) = [part for part in gc.get_referents(vars(kind)) if isinstance(part, dict)]
    return body


def members_of(body: dict[str, Any], is_of_tensors: bool) -> list[tuple[str, Any]]:
    """The members of a class that may be state: no constants, and in the classes of tensors no functions of the
    package."""
    found = [(k, m) for k, m in body.items() if k not in known_python.CLASS_FIELDS]
    found = [(k, m) for k, m in found if type(m) not in known_python.CONSTANT_TYPES]
    return [(k, m) for k, m in found if not _is_of_package(m)] if is_of_tensors else found


def _is_of_package(member: Any) -> bool:
    functions = known_python.wrapped_functions(member)
    if functions is None:
        return False
    return all(origin_of(f.__code__) == "package" for f in functions if isinstance(f, types.FunctionType))
