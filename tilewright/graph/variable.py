"""Variables that users make. In: a name with bounds, and the value that a user binds it to. Out: the `SymbolicInt` that
stands in shapes, offsets and node arguments (`symbolic`)."""

from __future__ import annotations

from typing import Any

from tilewright.base.dtype import dtypes
from tilewright.base.errors import ShapeError
from tilewright.graph.ops import Ops
from tilewright.graph.symbolic import SymbolicInt, size_access, state
from tilewright.graph.uop import UOp


class Variable:
    """A name for an integer that differs from run to run, with its minimum and maximum. `bind` gives the integer that
    stands in shapes: `cache[:, :Variable("n", 1, 4096).bind(17)]`. All values share one set of kernels."""

    __slots__ = ("greatest", "least", "name", "node")

    def __init__(self, name: str, least: int, greatest: int) -> None:
        if not isinstance(name, str) or not name.isidentifier():
            raise ShapeError("Variable", f"the name {name!r}", "give an identifier, such as 'n'")
        for bound in (least, greatest):
            if not isinstance(bound, int) or isinstance(bound, bool):
                message = f"{name} has the bound {bound!r}"
                raise ShapeError("Variable", message, "give the minimum and the maximum as integers")
        if least > greatest:
            message = f"{name} in {least}..{greatest}, which holds no value"
            raise ShapeError("Variable", message, "give the minimum first")
        if not -(1 << 62) < least <= greatest < 1 << 62:
            raise ShapeError("Variable", f"{name} in {least}..{greatest}", "give bounds that an int64 holds")
        self.name = name
        self.least = least
        self.greatest = greatest
        self.node = UOp(Ops.VARIABLE, dtypes.index, (), (name, least, greatest))

    def bind(self, value: int) -> int:
        """The variable with a value, to be used as a size, an offset, an index or a number; `int` gives the value."""
        if isinstance(value, bool) or not hasattr(value, "__index__"):
            raise ShapeError("bind", f"{self.name} is bound to {value!r}", "give a whole number")
        number = int(value)
        if not self.least <= number <= self.greatest:
            message = f"{self.name} is bound to {number} and lies in {self.least}..{self.greatest}"
            raise ShapeError("bind", message, "bind a value in these bounds, or make a Variable with wider ones")
        if self.least == self.greatest:
            return number
        state.is_used = True
        if self.name in size_access.given and size_access.listener is not None:
            size_access.listener(f"it binds {self.name} by itself, which is also an argument")
        return SymbolicInt(self.node, ((self.name, number),))

    def __index__(self) -> int:
        message = f"{self.name} has no value"
        raise ShapeError("Variable", message, f"bind it to one, such as {self.name}.bind({self.least})")

    def _refuse(self, *_: object) -> Any:
        return self.__index__()

    __int__ = __float__ = __index__
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _refuse
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __truediv__ = __rtruediv__ = __neg__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = _refuse

    def __repr__(self) -> str:
        return f"Variable({self.name!r}, {self.least}, {self.greatest})"
