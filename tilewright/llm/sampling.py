"""The choice of the next token. In: one row of logits and the settings of a request. Out: a token. Stands between the
network and the text; runs on the host, over one row that was copied from the device. A greedy choice takes the token
that the device has found, without copying the row.

Order of the steps: the repetition penalty changes logits; top-k, top-p and min-p leave out tokens, by the probabilities
at temperature 1; the temperature flattens or sharpens what is left; one random number chooses. A sampler has random
numbers of its own, one a token, so a seed gives the same tokens whatever else the machine does."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tilewright.base.errors import ConfigError, GenerationError, InternalError
from tilewright.base.records import record

if TYPE_CHECKING:
    import random
    from typing import Protocol

    import numpy as np

    Row = np.ndarray[Any, Any]

    class Scores(Protocol):
        """What a call of the network gives for each row (`llm/slots.py`)."""

        def best(self, row: int) -> tuple[int, float]: ...
        def weights(self, row: int, temperature: float) -> tuple[Row, Row]: ...
        def __getitem__(self, row: int) -> Row: ...


RUN = 256  # weights that are summed at once
# Tokens whose logits are at most this far below the greatest are sorted; if those are too few, the next margin is
# taken.
_MARGINS = (4.0, 8.0, 16.0, math.inf)


@record
class Sampling:
    """How tokens are chosen. `temperature` 0 takes the most probable one. `top_k` 0 or None, `top_p` 1, `min_p` 0 and
    `repetition_penalty` 1 leave nothing out and change nothing. `seed` None takes another one every time."""

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        _check("temperature", self.temperature, 0.0, 100.0)
        _check("top_p", self.top_p, 0.0, 1.0, above=True)
        _check("min_p", self.min_p, 0.0, 1.0)
        _check("repetition_penalty", self.repetition_penalty, 0.0, 100.0, above=True)
        for name in ("top_k", "seed"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
                raise ConfigError("sampling", f"{name} is {value!r}", "give a whole number of at least 0, or None")

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0 or self.top_k == 1

    @property
    def leaves_out(self) -> bool:
        """Whether top-k, top-p or min-p may leave out tokens."""
        return bool(self.top_k or self.top_p < 1 or self.min_p)


def _check(name: str, value: Any, low: float, high: float, above: bool = False) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not is_number or not low <= value <= high or (above and value == low):
        meant = f"a number {'above' if above else 'of at least'} {low:g} and at most {high:g}"
        raise ConfigError("sampling", f"{name} is {value!r}", f"give {meant}")


class Sampler:
    """The settings of one request, its random numbers and the tokens it has seen."""

    def __init__(self, sampling: Sampling, seen: Iterable[int] = ()) -> None:
        self.sampling = sampling
        self.seed = int.from_bytes(os.urandom(8), "little") >> 1 if sampling.seed is None else sampling.seed
        self._random: random.Random | None = None  # made by the first choice that is not greedy
        self._seen = set(seen) if sampling.repetition_penalty != 1 else set()

    def choose_from(self, scores: Scores, row: int) -> int:
        """The next token, from one row of a call's scores. Its logits are copied only if the choice is not greedy."""
        token, highest = scores.best(row)
        settings = self.sampling
        if settings.repetition_penalty == 1 and math.isfinite(highest):
            if settings.is_greedy:
                return token
            if not settings.leaves_out:
                return _pick(*scores.weights(row, settings.temperature), self._chance())
        return self.choose(scores[row])

    def choose(self, logits: Row) -> int:
        """The next token, by a row of logits as long as the vocabulary."""
        best = int(logits.argmax())  # NaN counts as the greatest
        highest = float(logits[best])
        if not math.isfinite(highest):
            raise _not_a_number(logits, highest)
        if self._seen:
            logits = self._penalised(logits)
            best = int(logits.argmax())
        token = best if self.sampling.is_greedy else self._draw(logits)
        if self.sampling.repetition_penalty != 1:
            self._seen.add(token)
        return token

    def _penalised(self, logits: Row) -> Row:
        """Tokens that occurred become less likely: positive logits are divided by the penalty, negative multiplied."""
        import numpy as np

        seen = np.fromiter(self._seen, np.int64, len(self._seen))
        seen = seen[seen < len(logits)]
        found = logits[seen]
        penalty = self.sampling.repetition_penalty
        changed = logits.copy()
        changed[seen] = np.where(found > 0, found / penalty, found * penalty)
        return changed

    def _draw(self, logits: Row) -> int:
        import numpy as np

        settings, chance = self.sampling, self._chance()
        if settings.leaves_out:
            tokens = self._candidates(logits)
            left = logits[tokens].astype(np.float64)
        else:  # nothing is left out, and nothing has to be sorted
            tokens, left = None, logits
        weights = np.exp((left - left.max()) / settings.temperature)
        starts = np.arange(0, len(weights), RUN)
        index = _pick(weights, np.add.reduceat(weights, starts, dtype=np.float64), chance)
        return index if tokens is None else int(tokens[index])

    def _chance(self) -> float:
        """The next random number."""
        if self._random is None:
            import random

            self._random = random.Random(self.seed)
        return self._random.random()

    def _candidates(self, logits: Row) -> Row:
        """The tokens that are left, the most probable first, the lower token of equals first."""
        import numpy as np

        settings = self.sampling
        highest = logits.max()
        top_k = min(settings.top_k or len(logits), len(logits))
        is_cut = top_k < len(logits)  # then top-p is a share of what top-k leaves
        total = float(np.exp(logits - highest).sum(dtype=np.float64)) if settings.top_p < 1 and not is_cut else 0.0
        for margin in _MARGINS:
            tokens = np.flatnonzero(logits >= highest - margin)
            if is_cut and len(tokens) < top_k and not settings.min_p and margin < math.inf:
                continue
            tokens = tokens[np.argsort(-logits[tokens], kind="stable")][:top_k]
            weights = np.exp((logits[tokens] - highest).astype(np.float64))
            sums = np.cumsum(weights)
            wanted = settings.top_p * (float(sums[-1]) if is_cut else total)
            reaches_top_p = not is_cut and settings.top_p < 1 and sums[-1] >= wanted
            reaches_min_p = (
                settings.min_p > 0 and margin > -math.log(settings.min_p) and (not is_cut or settings.top_p == 1)
            )
            if len(tokens) == top_k or reaches_top_p or reaches_min_p or margin == math.inf:
                kept_by_top_p = int(np.searchsorted(sums, wanted)) + 1 if settings.top_p < 1 else len(tokens)
                kept_by_min_p = int((weights >= settings.min_p).sum())
                return tokens[: max(1, min(kept_by_top_p, kept_by_min_p))]
        raise InternalError("no margin holds all tokens")


def _pick(weights: Row, runs: Row, chance: float) -> int:
    """The first index up to which the weights sum to more than `chance` of the total. The run is found from the sums of
    runs: a running sum over a vocabulary would take longer than the rest of a choice."""
    import numpy as np

    ends = np.cumsum(runs, dtype=np.float64)
    wanted = chance * ends[-1]
    run = min(int(np.searchsorted(ends, wanted, side="right")), len(ends) - 1)
    while run and not weights[run * RUN : (run + 1) * RUN].any():
        run -= 1
    sums = np.cumsum(weights[run * RUN : (run + 1) * RUN], dtype=np.float64)
    # A remainder from rounding counts for the last weight of the run that is not 0.
    rest = min(wanted - (float(ends[run - 1]) if run else 0.0), float(np.nextafter(sums[-1], 0)))
    return run * RUN + int(np.searchsorted(sums, rest, side="right"))


def _not_a_number(logits: Row, highest: float) -> GenerationError:
    import numpy as np

    if highest == -math.inf:
        what = "every logit is -inf"
    else:
        what = f"{int(np.isnan(logits).sum())} of {len(logits)} logits are NaN and {int(np.isposinf(logits).sum())} inf"
    remedy = "the weights are damaged or overflow this dtype: fetch the file again, or load it in float32"
    return GenerationError("sampling", f"the model gave no probabilities: {what}", remedy)
