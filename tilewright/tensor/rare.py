"""Families that few programs use, in one class. In: nothing. Out: `RareMixin`, which becomes a base of `Tensor` when
one of these operations is first asked for: decompositions, convolutions, images, losses and statistics are a third of
all operations, and programs that need none of them do without the time and the memory to load them."""

from __future__ import annotations

from tilewright.tensor.families.hashing import HashingMixin
from tilewright.tensor.families.linalg.einsum import EinsumMixin
from tilewright.tensor.families.linalg.norms import NormsMixin
from tilewright.tensor.families.networks.convolution import ConvolutionMixin
from tilewright.tensor.families.networks.images import ImagesMixin
from tilewright.tensor.families.networks.losses import LossesMixin
from tilewright.tensor.families.statistics import StatisticsMixin


class RareMixin(NormsMixin, EinsumMixin, ConvolutionMixin, ImagesMixin, LossesMixin, StatisticsMixin, HashingMixin):
    """The base of a tensor that has these families."""
