"""Tokens by scores, as SentencePiece merges them (Llama 1 and 2, Gemma, stories260K). In: the pieces of a vocabulary
with their scores. Out: a function from text to tokens. Of all neighbours whose concatenation is a piece, those with the
highest score are merged first, the leftmost of equals; a character that is not a piece becomes its bytes.

The library `tokenizers` needs a list of merges, which these files do not have. Finding the 500,000 merges of Gemma
would take seconds and 300 MB at every start, and would order the splits of one piece, which SentencePiece does not."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence

SPACE = "▁"  # stands for a space in the pieces

Encode = Callable[[str], list[int]]


def sentence_piece_encoder(
    pieces: Mapping[str, int], scores: Sequence[float], bytes_at: Mapping[int, int], unknown: int | None
) -> Encode:
    """`bytes_at` has the token of each byte; a byte without a token becomes `unknown`, or nothing if that is None."""

    def encode(text: str) -> list[int]:
        found: list[int] = []
        for piece in _merge(text, pieces, scores):
            token = pieces.get(piece)
            if token is not None:
                found.append(token)
                continue
            tokens = [bytes_at.get(byte, unknown) for byte in piece.encode()]
            found += [token for token in tokens if token is not None]
        return found

    return encode


def _merge(text: str, pieces: Mapping[str, int], scores: Sequence[float]) -> list[str]:
    """The pieces of a text. They form a linked list; a merged piece takes the index of its left part."""
    parts = list(text)
    after = list(range(1, len(parts) + 1))
    before = list(range(-1, len(parts) - 1))
    candidates: list[tuple[float, int, str]] = []

    def consider(left: int) -> None:
        right = after[left]
        if right < len(parts):
            joined = parts[left] + parts[right]
            token = pieces.get(joined)
            if token is not None:
                heapq.heappush(candidates, (-scores[token], left, joined))

    for left in range(len(parts) - 1):
        consider(left)
    while candidates:
        _, left, joined = heapq.heappop(candidates)
        right = after[left]
        # One of the two was merged with another neighbour since. A part that is gone is ''.
        if right >= len(parts) or not parts[left] or parts[left] + parts[right] != joined:
            continue
        parts[left] = joined
        parts[right] = ""
        after[left] = after[right]
        if after[left] < len(parts):
            before[after[left]] = left
        consider(left)
        if before[left] >= 0:
            consider(before[left])
    return [part for part in parts if part]
