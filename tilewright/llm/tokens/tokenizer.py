"""Text to tokens and back. In: a vocabulary, as `tokenizer_files` finds it in the files of a model, and text or tokens.
Out: tokens or text. Stands between text and the network.

Control tokens such as `<|im_end|>` end turns and answers. Text that people write may spell them, and must not become
them: `encode` reads them as tokens only where it is asked to (`special=True`), for the text of a chat template."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from tilewright.base.errors import FileFormatError
from tilewright.llm.tokens.sentence_pieces import Encode

# The kinds of tokens, by the numbers of the GGUF format.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
# An answer ends with any of these, where a vocabulary has it as a control token: a file names one of them, and models
# were trained to end with another.
_END_NAMES = (
    *("<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<end_of_turn>", "<|endoftext|>", "<|eom_id|>"),
    *("<EOT>", "[EOT]", "[EOS]", "<eos>", "</s>", "<|end_of_text|>", "<end_of_utterance>"),
    "<\uff5cend\u2581of\u2581sentence\uff5c>",  # DeepSeek, with a wide bar and SentencePiece's space
)


class Tokenizer:
    """The vocabulary of a model. `bos` is the token that begins a text, `eos` the one that ends it, None where there is
    none; `end_tokens` are all that end an answer."""

    def __init__(
        self,
        pieces: Sequence[str],
        kinds: Sequence[int],
        encode_plain: Encode,
        bytes_of: Callable[[int], bytes],
        *,
        bos: int | None = None,
        eos: int | None = None,
        end_tokens: Iterable[int] = (),
        adds_bos: bool = False,
        adds_space: bool = False,
    ) -> None:
        self.pieces = pieces
        self.bos = bos
        self.eos = eos
        self.adds_bos = adds_bos and bos is not None
        self.adds_space = adds_space
        self._encode_plain = encode_plain
        self._bytes_of = bytes_of
        self._bytes: dict[int, bytes] = {}
        self._control = {pieces[token]: token for token, kind in enumerate(kinds) if kind in (CONTROL, UNKNOWN)}
        self._user_defined = {pieces[token]: token for token, kind in enumerate(kinds) if kind == USER_DEFINED}
        self._silent = frozenset(self._control.values())
        named = (self._control[name] for name in _END_NAMES if name in self._control)
        self.end_tokens = frozenset((*end_tokens, *named, *(() if eos is None else (eos,))))
        self._cut = _Cutter(self._user_defined)
        self._cut_special = _Cutter(self._user_defined | self._control)

    @property
    def vocabulary(self) -> int:
        """How many tokens there are."""
        return len(self.pieces)

    @property
    def control_texts(self) -> tuple[str, ...]:
        """The spellings of the control tokens, the longest first."""
        return tuple(sorted(self._control, key=len, reverse=True))

    # ---------------------------------------------------------------- text to tokens

    def encode(self, text: str, *, special: bool = False, begin: bool = False, mark: str = "") -> list[int]:
        """The tokens of a text. With `special` the spelling of a control token is that token; `begin` puts `bos` first,
        where the model needs it and the text does not begin with it. The character `mark` is left out:
        put into the spelling of a control token it keeps it text."""
        found = self._encode_whole(well_formed(text), special, mark)
        if begin and self.adds_bos and self.bos is not None and found[:1] != [self.bos]:
            found.insert(0, self.bos)
        return found

    def _encode_whole(self, text: str, special: bool, mark: str) -> list[int]:
        found: list[int] = []
        # A text begins as after a control token: both get the space that some models put before a first word.
        begins = True
        for piece, token in (self._cut_special if special else self._cut)(text):
            if token is not None:
                found.append(token)
                begins = token in self._silent
                continue
            plain = piece.replace(mark, "") if mark else piece
            found += self._encode_plain(" " + plain if begins and self.adds_space else plain)
            begins = False
        return found

    # ---------------------------------------------------------------- tokens to text

    def token_bytes(self, token: int) -> bytes:
        """The bytes of one token; none for a control token. A character may be spread over several tokens."""
        found = self._bytes.get(token)
        if found is None:
            if not 0 <= token < len(self.pieces):
                raise FileFormatError(
                    "decode",
                    f"token {token} is outside the vocabulary of {len(self.pieces)}",
                    "use the model's own tokenizer",
                )
            found = self._bytes[token] = b"" if token in self._silent else self._bytes_of(token)
        return found

    def decode(self, tokens: Iterable[int], *, special: bool = False) -> str:
        """The text of tokens, the inverse of `encode`; with `special` control tokens are spelt out."""
        parts = []
        for token in tokens:
            shown = special and token in self._silent
            parts.append(self.pieces[token].encode() if shown else self.token_bytes(token))
        data = b"".join(parts)
        return (data.removeprefix(b" ") if self.adds_space else data).decode("utf-8", "replace")


class _Cutter:
    """Cuts a text at the tokens of a table, the longest where several begin at one character. In: a text. Out: pairs of
    a piece and its token, None for the text between."""

    def __init__(self, tokens: Mapping[str, int]) -> None:
        self._tokens = {spelling: token for spelling, token in tokens.items() if spelling}
        self._sizes: dict[str, list[int]] = {}  # by the first character; Gemma has 6,000 tokens that begin with `<`
        for first in {spelling[0] for spelling in self._tokens}:
            sizes = {len(spelling) for spelling in self._tokens if spelling[0] == first}
            self._sizes[first] = sorted(sizes, reverse=True)
        firsts = "".join(map(re.escape, self._sizes))
        self._first = re.compile(f"[{firsts}]") if firsts else None

    def __call__(self, text: str) -> list[tuple[str, int | None]]:
        found: list[tuple[str, int | None]] = []
        start = at = 0
        while self._first and (match := self._first.search(text, at)):
            at = match.start()
            spelling = self._token_at(text, at)
            if not spelling:
                at += 1
                continue
            if start < at:
                found.append((text[start:at], None))
            found.append((spelling, self._tokens[spelling]))
            start = at = at + len(spelling)
        if start < len(text):
            found.append((text[start:], None))
        return found

    def _token_at(self, text: str, at: int) -> str:
        for size in self._sizes[text[at]]:
            if text[at : at + size] in self._tokens:
                return text[at : at + size]
        return ""


def well_formed(text: str) -> str:
    """The text with U+FFFD for each lone surrogate, which is not a character and has no UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
