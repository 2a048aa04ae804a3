"""Keccak, the permutation of SHA-3 and SHAKE, on tensors. In: bytes along the last axis. Out: the digest of each row. A
round is a few operations on a (rows, 5, 5) state of 64-bit words; all rounds run the same kernel."""

from __future__ import annotations

import math
from typing import Self, TypeVar

from tilewright.base.dtype import dtypes
from tilewright.base.errors import DTypeError, UnsupportedError
from tilewright.base.records import NamedTuple
from tilewright.tensor.families.base import Family

T = TypeVar("T", bound=Family)
_WORD = 64
_STATE_BYTES = 200
_ROUNDS = 24


class Sponge(NamedTuple):
    """A hash function of the family: its padding suffix, and its block and digest sizes in bytes."""

    suffix: int
    rate: int
    size: int


SPONGES = {
    "sha3_224": Sponge(0x06, 144, 28),
    "sha3_256": Sponge(0x06, 136, 32),
    "sha3_384": Sponge(0x06, 104, 48),
    "sha3_512": Sponge(0x06, 72, 64),
    "shake_128": Sponge(0x1F, 168, 16),
    "shake_256": Sponge(0x1F, 136, 32),
}


def rotations() -> list[int]:
    """The rotation of the word at row y, column x: triangular numbers along one path through the state."""
    found = [0] * 25
    x, y = 1, 0
    for step in range(_ROUNDS):
        found[5 * y + x] = (step + 1) * (step + 2) // 2 % _WORD
        x, y = y, (2 * x + 3 * y) % 5
    return found


def round_constants() -> list[int]:
    """One word per round; its bits 2**j - 1 come from an 8-bit linear feedback shift register."""
    constants, register = [], 1
    for _ in range(_ROUNDS):
        word = 0
        for j in range(7):
            word |= (register & 1) << ((1 << j) - 1)
            register = (register << 1) ^ (0x171 if register & 0x80 else 0)
        constants.append(word)
    return constants


class HashingMixin(Family):
    """keccak."""

    def keccak(self, cfg: str = "sha3_256") -> Self:
        """The digest of each row of bytes (the last axis), as `hashlib` computes it: sha3_224 to sha3_512, shake_128
        and shake_256 (16 and 32 bytes)."""
        if cfg not in SPONGES:
            raise UnsupportedError("keccak", f"the hash {cfg!r}", f"give one of {', '.join(SPONGES)}")
        if self.dtype is not dtypes.uint8 or not self.ndim:
            raise DTypeError("keccak", f"a message of {self._described()}", "give bytes: uint8 along the last axis")
        sponge = SPONGES[cfg]
        outer, length = self.shape[:-1], self.shape[-1]
        rows = math.prod(outer)
        if not rows:
            return self.zeros(*outer, sponge.size, dtype=dtypes.uint8, device=self.device)
        state = self.zeros(rows, 25, dtype=dtypes.uint64, device=self.device)
        words = self._padded(rows, length, sponge)
        constants = [self._tensor([word] + [0] * 24).cast(dtypes.uint64).contiguous() for word in round_constants()]
        for block in range(words.shape[1]):
            state = (state ^ words[:, block]).contiguous()
            for constant in constants:
                state = _round(state, constant).contiguous()
        digest = state.bitcast(dtypes.uint8)[:, : sponge.size]
        return digest.reshape((*outer, sponge.size))

    def _padded(self, rows: int, length: int, sponge: Sponge) -> Self:
        """The message as (rows, blocks, words of a state), padded with the suffix and a final 1 bit."""
        blocks = length // sponge.rate + 1
        tail = [0] * (blocks * sponge.rate - length)
        tail[0] ^= sponge.suffix
        tail[-1] ^= 0x80
        ending = self._tensor(tail).cast(dtypes.uint8).reshape((1, len(tail))).expand((rows, len(tail)))
        message = self.reshape((rows, length)).cat(ending, dim=1).reshape((rows, blocks, sponge.rate))
        return message.pad(((0, 0), (0, 0), (0, _STATE_BYTES - sponge.rate))).contiguous().bitcast(dtypes.uint64)


def _round(state: T, constant: T) -> T:
    """theta, rho, pi, chi and iota."""
    cells = state.reshape((state.shape[0], 5, 5))  # [row, y, x]
    parity = cells[:, 0]
    for y in range(1, 5):
        parity = parity ^ cells[:, y]
    shifted = _rotated(parity.roll(-1, 1), parity._tensor([1] * 5).cast(dtypes.uint64))
    mixed = cells ^ (parity.roll(1, 1) ^ shifted).unsqueeze(1)
    amounts = mixed._tensor(rotations()).cast(dtypes.uint64).reshape((5, 5))
    rotated = _rotated(mixed, amounts).reshape((state.shape[0], 25))
    # The word at (x, y) goes to (y, 2x + 3y): the word that comes to (x, y) stood at (x + 3y, x).
    sources = [5 * x + (x + 3 * y) % 5 for y in range(5) for x in range(5)]
    moved = rotated[:, rotated._tensor(sources)].reshape(cells.shape)
    chosen = moved ^ (moved.roll(-1, 2).bitwise_not() & moved.roll(-2, 2))
    return chosen.reshape(state.shape) ^ constant


def _rotated(words: T, amounts: T) -> T:
    """Rotated to the left; a rotation by 0 would shift by the word's width."""
    behind = (amounts.eq(0).where(0, _WORD - amounts.cast(dtypes.int64))).cast(dtypes.uint64)
    return words.lshift(amounts) | amounts.eq(0).where(0, words.rshift(behind)).cast(dtypes.uint64)
