"""What the families stand on: every operation of the chain below them, and those that `Tensor` itself adds, of which
only the types are said here. A family may call what stands here, and nothing of another family."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from tilewright.tensor.families.interop import InteropMixin


class Family(InteropMixin):
    """The base of a family of operations."""

    if TYPE_CHECKING:

        def assign(self, x: Any) -> Self: ...

        def bitcast(self, dtype: Any) -> Self: ...

        def clone(self) -> Self: ...
