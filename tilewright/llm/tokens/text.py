"""The text of an answer while it is generated. In: the bytes of one token after the other, and strings at which to
stop. Out: pieces of valid text. A character whose bytes are spread over several tokens is held back until it is whole,
and so is a possible beginning of a stop string. Stands between the tokenizer and the caller that shows the text."""

from __future__ import annotations

import codecs
from collections.abc import Iterable

from tilewright.base.errors import ConfigError
from tilewright.llm.tokens.tokenizer import Tokenizer

MAX_STOP_STRINGS = 64


class TextStream:
    """Takes tokens as bytes and gives text back. The pieces together are the text before the stop string that occurs
    first; bytes that are not UTF-8 become U+FFFD."""

    def __init__(self, stop: Iterable[str] = (), skip_space: bool = False) -> None:
        """`skip_space` leaves out one space at the very start, which some tokenizers put before the first word."""
        self._stop = check_stop_strings(stop)
        self._skip_space = skip_space
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self.stopped = ""  # the stop string that was found

    def feed(self, data: bytes) -> str:
        """The text that is certain after these bytes; '' once a stop string was found."""
        if self.stopped:
            return ""
        return self._release(self._decoder.decode(data), final=False)

    def finish(self) -> str:
        """What was held back at the end of the answer."""
        if self.stopped:
            return ""
        return self._release(self._decoder.decode(b"", final=True), final=True)

    def _release(self, text: str, final: bool) -> str:
        if self._skip_space and text:
            text = text.removeprefix(" ")
            self._skip_space = False
        if not self._stop:
            return text
        self._held += text
        found = [(at, -len(stop), stop) for stop in self._stop if (at := self._held.find(stop)) >= 0]
        if found:
            at, _, self.stopped = min(found)
            return self._take(at, drop=True)
        return self._take(len(self._held) if final else len(self._held) - self._beginning())

    def _take(self, count: int, drop: bool = False) -> str:
        taken, rest = self._held[:count], self._held[count:]
        self._held = "" if drop else rest
        return taken

    def _beginning(self) -> int:
        """How many of the last characters are the beginning of a stop string."""
        longest = max(map(len, self._stop)) - 1
        for size in range(min(longest, len(self._held)), 0, -1):
            if any(stop.startswith(self._held[-size:]) for stop in self._stop):
                return size
        return 0


class TokenStream:
    """Text from the tokens of an answer, one at a time; see `TextStream`. `continues` is whether the text continues one
    that was shown, so that a space at its start is kept."""

    def __init__(self, tokenizer: Tokenizer, stop: Iterable[str] = (), continues: bool = False) -> None:
        self._bytes_of = tokenizer.token_bytes
        self._text = TextStream(stop, skip_space=tokenizer.adds_space and not continues)

    @property
    def stopped(self) -> str:
        """The stop string that was found."""
        return self._text.stopped

    def push(self, token: int) -> str:
        return self._text.feed(self._bytes_of(token))

    def finish(self) -> str:
        return self._text.finish()


def check_stop_strings(stop: Iterable[str]) -> tuple[str, ...]:
    """The stop strings as a tuple; a lone string is one of them."""
    strings = (stop,) if isinstance(stop, str) else tuple(stop)
    if any(not isinstance(string, str) or not string for string in strings):
        message = f"{strings!r} has an entry that is empty or not a string"
        raise ConfigError("stop strings", message, "leave that entry out")
    if len(strings) > MAX_STOP_STRINGS:
        raise ConfigError("stop strings", f"there are {len(strings)}", f"give at most {MAX_STOP_STRINGS}")
    return strings
