"""The base of the families: the core of a tensor and the primitive operations in one class. Every family subclasses it;
one that uses operations of another family names that family as its base instead."""

from __future__ import annotations

from tilewright.tensor.core.gradient import GradientMixin
from tilewright.tensor.core.placement import PlacementMixin
from tilewright.tensor.primitives.creation import CreationMixin
from tilewright.tensor.primitives.indexing import IndexingMixin


class Family(IndexingMixin, CreationMixin, PlacementMixin, GradientMixin):
    """The base of a family of operations."""
