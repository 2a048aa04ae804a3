"""Streams of text: pieces are valid, nothing is lost or shown too early, stop strings are found across tokens."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.llm.vocabularies import ALPHABET
from tilewright.base.errors import ConfigError
from tilewright.llm.tokens.text import TextStream


def stream(data: bytes, sizes: list[int], stop: tuple[str, ...] = ()) -> tuple[list[str], str]:
    """The pieces that come for these bytes, cut into tokens of these sizes, again and again."""
    made, pieces, at = TextStream(stop), [], 0
    while at < len(data):
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(made.feed(data[at : at + size]))
        at += size
    pieces.append(made.finish())
    return pieces, made.stopped


@settings(max_examples=30)
@given(st.text(ALPHABET), st.lists(st.integers(1, 5), min_size=1))
def test_pieces_are_the_text(text: str, sizes: list[int]) -> None:
    pieces, _ = stream(text.encode(), sizes)
    assert "".join(pieces) == text
    assert all(piece.encode() for piece in pieces if piece), "no piece has half a character"


@settings(max_examples=30)
@given(st.binary(), st.lists(st.integers(1, 5), min_size=1))
def test_bytes_that_are_no_text_become_replacement_characters(data: bytes, sizes: list[int]) -> None:
    assert "".join(stream(data, sizes)[0]) == data.decode("utf-8", "replace")


@settings(max_examples=30)
@given(
    st.text("abc"),
    st.lists(st.text("abc", min_size=1, max_size=4), max_size=3),
    st.lists(st.integers(1, 4), min_size=1),
)
def test_the_first_stop_string_ends_the_text(text: str, stop: list[str], sizes: list[int]) -> None:
    pieces, stopped = stream(text.encode(), sizes, tuple(stop))
    ends = [text.find(string) for string in stop if string in text]
    # A token at a time: what is complete first stops, and that is at the earliest start among those complete by then.
    assert bool(stopped) == bool(ends)
    shown = "".join(pieces)
    assert text.startswith(shown)
    if ends:
        assert text[len(shown) :].startswith(stopped)
        assert not any(string in shown for string in stop)
    else:
        assert shown == text


def test_a_stop_string_across_tokens_is_never_shown() -> None:
    made = TextStream(["\nUser:", "END"])
    assert [made.feed(data) for data in (b"Hi", b"\n", b"Us", b"e", b"d EN", b"D of")] == [
        "Hi",
        "",
        "",
        "",
        "\nUsed ",
        "",
    ]
    assert (made.stopped, made.feed(b"more"), made.finish()) == ("END", "", "")


def test_what_was_held_back_comes_at_the_end() -> None:
    made = TextStream("END")
    assert [made.feed(b"the EN"), made.finish()] == ["the ", "EN"]
    made = TextStream()
    assert [made.feed("é".encode()[:1]), made.finish()] == ["", "\ufffd"]


def test_the_first_space_is_left_out_once() -> None:
    made = TextStream(skip_space=True)
    assert [made.feed(b""), made.feed(b"  a"), made.feed(b" b")] == ["", " a", " b"]


@pytest.mark.parametrize("stop", [[""], [3], ["a"] * 65])
def test_stop_strings_are_checked(stop: list[str]) -> None:
    with pytest.raises(ConfigError, match="stop strings"):
        TextStream(stop)
