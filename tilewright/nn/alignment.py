"""The loss of sequences without an alignment (connectionist temporal classification). In: log-probabilities of classes
at every time, and shorter sequences of labels. Out: minus the log of the probability of all alignments together."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.base.errors import ShapeError
from tilewright.tensor.tensor import Tensor

__all__: list[str] = ["CTCLoss"]

# The log of a probability of 0: finite, so that a sum of such has a gradient, and far below any that occurs.
_IMPOSSIBLE = -1e30

Lengths = Tensor | Sequence[int]


def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Lengths,
    target_lengths: Lengths,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    """The loss of (time, batch, classes) log-probabilities against (batch, labels), padded at their ends. The mean is
    of each loss divided by the number of its labels."""
    if log_probs.ndim != 3 or targets.ndim != 2 or targets.shape[0] != log_probs.shape[1]:
        message = f"log-probabilities {log_probs.shape} and targets {targets.shape}"
        raise ShapeError("ctc_loss", message, "give (time, batch, classes) and (batch, labels), padded at the end")
    if reduction not in ("mean", "sum", "none"):
        raise ShapeError("ctc_loss", f"reduction={reduction!r}", "give mean, sum or none")
    times, batch, _ = log_probs.shape
    device = log_probs.device
    given = [
        each if isinstance(each, Tensor) else Tensor(list(each), device=device)
        for each in (input_lengths, target_lengths)
    ]
    ends, counts = given
    # A blank before, between and after the labels; one may be left out between two labels that differ.
    blanks = targets.full_like(blank)
    path = Tensor.stack(blanks, targets, dim=2).flatten(1).pad((0, 1), value=blank)
    states = path.shape[1]
    before = path.pad((2, 0), value=blank)[:, :states]
    may_skip = (path != blank) & (path != before)
    scores = log_probs.gather(2, path.unsqueeze(0).expand(times, batch, states))
    number = Tensor.arange(states, device=device)
    total = (number < 2).where(scores[0], _IMPOSSIBLE)
    for time in range(1, times):
        one, two = (total.pad((steps, 0), value=_IMPOSSIBLE)[:, :states] for steps in (1, 2))
        reached = Tensor.stack(total, one, may_skip.where(two, _IMPOSSIBLE)).logsumexp(0)
        total = (ends > time).unsqueeze(1).where((reached + scores[time]).maximum(_IMPOSSIBLE), total)
    last = counts.unsqueeze(1) * 2
    is_end = (number == last) | (number == last - 1)
    loss = -is_end.where(total, _IMPOSSIBLE).logsumexp(1)
    loss = (loss > -_IMPOSSIBLE / 2).where(0.0 if zero_infinity else float("inf"), loss)
    if reduction == "mean":
        return (loss / counts.clamp(1).cast(loss.dtype)).mean()
    return loss.sum() if reduction == "sum" else loss


class CTCLoss:
    """The loss of sequences without an alignment; the arguments of a call are those of `functional.ctc_loss`."""

    def __init__(self, blank: int = 0, reduction: str = "mean", zero_infinity: bool = False) -> None:
        self.blank = blank
        self.reduction = reduction
        self.zero_infinity = zero_infinity

    def __call__(self, log_probs: Tensor, targets: Tensor, input_lengths: Lengths, target_lengths: Lengths) -> Tensor:
        choices = (self.blank, self.reduction, self.zero_infinity)
        return ctc_loss(log_probs, targets, input_lengths, target_lengths, *choices)
