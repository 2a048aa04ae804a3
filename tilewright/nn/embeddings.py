"""Tables of vectors that integers select. In: integers. Out: a row of the table for each, or the sum, mean or maximum
of the rows of a bag. The row of `padding_idx` gets no gradient; in a bag it is left out."""

from __future__ import annotations

from tilewright.base.errors import DTypeError, ShapeError
from tilewright.nn.layers import check_sizes
from tilewright.tensor.core.graph_memo import remembering
from tilewright.tensor.tensor import Tensor

__all__: list[str] = ["Embedding", "EmbeddingBag"]

_MODES = ("sum", "mean", "max")


def check_padding(operation: str, padding_idx: int | None, rows: int) -> int | None:
    """The row of the padding, counted from the start."""
    if padding_idx is None:
        return None
    if not -rows <= padding_idx < rows:
        raise ShapeError(operation, f"padding_idx={padding_idx} of {rows} rows", f"give {-rows}..{rows - 1}, or None")
    return padding_idx % rows


@remembering
def embedding(input: Tensor, weight: Tensor, padding_idx: int | None = None) -> Tensor:
    """A row of the weight for each integer; the row of `padding_idx` gets no gradient."""
    if not input.dtype.is_int:
        raise DTypeError("embedding", f"an index of dtype {input.dtype.name}", "give integers")
    padding = check_padding("embedding", padding_idx, weight.shape[0])
    found = weight[input]
    return found if padding is None else (input == padding).unsqueeze(-1).where(found.detach(), found)


def embedding_bag(
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    mode: str = "mean",
    per_sample_weights: Tensor | None = None,
    padding_idx: int | None = None,
) -> Tensor:
    """The sum, mean or maximum of the rows of each bag. A bag is a row of `input`, or, where that has one axis, the
    integers from one of the `offsets` to the next. A bag without rows gives 0."""
    if mode not in _MODES:
        raise ShapeError("embedding_bag", f"mode={mode!r}", f"give {', '.join(_MODES)}")
    if input.ndim != (2 if offsets is None else 1):
        message = f"an index of shape {input.shape} {'without' if offsets is None else 'with'} offsets"
        raise ShapeError("embedding_bag", message, "give (bags, rows), or (rows,) and offsets")
    if per_sample_weights is not None and mode != "sum":
        raise ShapeError("embedding_bag", f"weights of rows with mode={mode!r}", "give them with mode='sum'")
    rows = embedding(input, weight)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(-1)
    padding = check_padding("embedding_bag", padding_idx, weight.shape[0])
    is_in = input == input if padding is None else input != padding
    bags = input.shape[0] if offsets is None else offsets.shape[0]
    if offsets is None:
        bag = Tensor.arange(bags, device=input.device).unsqueeze(1).expand(*input.shape).reshape(-1)
    else:
        bag = offsets.searchsorted(Tensor.arange(input.shape[0], dtype=offsets.dtype, device=input.device), right=True)
        bag = bag - 1
    if mode == "max":
        lowest = is_in.unsqueeze(-1).where(rows, -float("inf"))
        if offsets is None:
            found = lowest.max(1)
        else:
            start = Tensor.full((bags, rows.shape[-1]), -float("inf"), dtype=rows.dtype, device=input.device)
            index = bag.unsqueeze(1).expand(*rows.shape)
            found = start.scatter_reduce(0, index, lowest, "amax")
        return (found == -float("inf")).where(0, found)
    kept = rows if padding is None else is_in.unsqueeze(-1).where(rows, 0)
    if offsets is None:
        total, count = kept.sum(1), is_in.sum(1, keepdim=True)
    else:
        total = Tensor.zeros(bags, rows.shape[-1], dtype=rows.dtype, device=input.device).index_add(0, bag, kept)
        ones = is_in.cast("int32").unsqueeze(-1)
        count = Tensor.zeros(bags, 1, dtype="int32", device=input.device).index_add(0, bag, ones)
    return total if mode == "sum" else total / count.clamp(1).cast(total.dtype)


class Embedding:
    """A row of the table for each integer. The row of `padding_idx` starts as 0 and is not trained."""

    def __init__(self, vocab_size: int, embed_size: int, padding_idx: int | None = None) -> None:
        name = type(self).__name__
        check_sizes(name, vocab_size=vocab_size, embed_size=embed_size)
        self.vocab_size = vocab_size
        self.embed_size = embed_size
        self.padding_idx = check_padding(name, padding_idx, vocab_size)
        self.weight = Tensor.normal(vocab_size, embed_size, requires_grad=True)
        if self.padding_idx is not None:
            is_padding = Tensor.arange(vocab_size).unsqueeze(1) == self.padding_idx
            self.weight = is_padding.where(0, self.weight.detach()).requires_grad_()

    def __call__(self, idx: Tensor) -> Tensor:
        return embedding(idx, self.weight, self.padding_idx)


class EmbeddingBag(Embedding):
    """The sum, mean or maximum of the rows of each bag; the arguments of a call are those of `embedding_bag`."""

    def __init__(
        self, num_embeddings: int, embedding_dim: int, *, mode: str = "mean", padding_idx: int | None = None
    ) -> None:
        if mode not in _MODES:
            raise ShapeError("EmbeddingBag", f"mode={mode!r}", f"give {', '.join(_MODES)}")
        super().__init__(num_embeddings, embedding_dim, padding_idx)
        self.mode = mode

    def __call__(self, idx: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None) -> Tensor:
        return embedding_bag(idx, self.weight, offsets, self.mode, per_sample_weights, self.padding_idx)
