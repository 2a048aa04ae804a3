"""Tokenizers: text comes back whole, control tokens are read where it is asked for, damaged vocabularies are told."""

from __future__ import annotations

import itertools
import json
import threading
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.llm.vocabularies import ALPHABET, HARD_TEXTS, SPECIAL, byte_pair_facts, sentence_piece_facts
from tilewright.base.errors import FileError, FileFormatError, UnsupportedError
from tilewright.llm.tokens.sentence_pieces import sentence_piece_encoder
from tilewright.llm.tokens.tokenizer import Tokenizer
from tilewright.llm.tokens.tokenizer_files import load_tokenizer

BYTE_PAIRS = byte_pair_facts()
TOKENIZERS = {
    "byte pairs": load_tokenizer(BYTE_PAIRS),
    "sentence pieces": load_tokenizer(sentence_piece_facts()),
    "without a first space": load_tokenizer(sentence_piece_facts(adds_space=False)),
}


def write_folder(folder: Path, **settings: Any) -> Path:
    """The vocabulary of BYTE_PAIRS as a Hugging Face folder."""
    pieces = BYTE_PAIRS["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in BYTE_PAIRS["tokenizer.ggml.merges"]]
    made = tokenizers.Tokenizer(tokenizers.models.BPE({piece: i for i, piece in enumerate(pieces)}, merges))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.add_special_tokens(list(SPECIAL))
    made.save(str(folder / "tokenizer.json"))
    described = {"bos_token": "<|im_start|>", "eos_token": {"content": "<|im_end|>"}, **settings}
    (folder / "tokenizer_config.json").write_text(json.dumps(described))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 0]}))
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("model"))


# ---------------------------------------------------------------- round trips


@pytest.mark.parametrize("name", TOKENIZERS)
def test_text_comes_back(name: str) -> None:
    tokenizer = TOKENIZERS[name]
    for text in HARD_TEXTS:
        assert tokenizer.decode(tokenizer.encode(text)) == text
        if not tokenizer.adds_space:  # else text after a control token begins with a space
            assert tokenizer.decode(tokenizer.encode(text, special=True), special=True) == text


@settings(max_examples=15)
@given(st.text(ALPHABET))
def test_any_text_comes_back(text: str) -> None:
    for tokenizer in TOKENIZERS.values():
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_byte_pairs_are_those_of_the_library(folder: Path) -> None:
    library = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    of_folder = load_tokenizer(folder)
    for text in HARD_TEXTS:
        for special in (False, True):
            library.encode_special_tokens = not special
            expected = library.encode(text, add_special_tokens=False).ids
            assert TOKENIZERS["byte pairs"].encode(text, special=special) == expected, text
            assert of_folder.encode(text, special=special) == expected
        assert of_folder.decode(of_folder.encode(text)) == text


def test_lone_surrogates_become_the_replacement_character() -> None:
    for tokenizer in TOKENIZERS.values():
        assert tokenizer.decode(tokenizer.encode("a\ud800b\udcff")) == "a\ufffdb\ufffd"
        assert tokenizer.decode(tokenizer.encode("\ud83c\udf89")) == "🎉"


# ---------------------------------------------------------------- scores


def test_pieces_merge_by_score_and_then_from_the_left() -> None:
    encode = sentence_piece_encoder({"a": 0, "b": 1, "ab": 2, "ba": 3, "aa": 4}, [0, 0, -1, -2, -1.5], {}, None)
    assert encode("aab") == [0, 2]
    assert encode("bab") == [1, 2]
    assert encode("aaa") == [4, 0]
    assert encode("baa") == [1, 4]
    assert encode("axb") == [0, 1], "x has neither a piece nor bytes nor an unknown token"


def merge_naively(text: str, pieces: dict[str, int], scores: list[float]) -> list[str]:
    parts = list(text)
    while True:
        joined = [(-scores[pieces[a + b]], i) for i, (a, b) in enumerate(itertools.pairwise(parts)) if a + b in pieces]
        if not joined:
            return parts
        _, at = min(joined)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]


@given(st.text("abc", max_size=24), st.lists(st.text("abc", min_size=2, max_size=4), max_size=12), st.randoms())
def test_merging_is_that_of_its_definition(text: str, words: list[str], random: Any) -> None:
    pieces = {piece: i for i, piece in enumerate(dict.fromkeys(["a", "b", "c", *words]))}
    scores = [random.randint(-5, 0) for _ in pieces]
    expected = [pieces[part] for part in merge_naively(text, pieces, scores)]
    assert sentence_piece_encoder(pieces, scores, {}, None)(text) == expected


def test_the_space_before_a_first_word() -> None:
    with_space, without = TOKENIZERS["sentence pieces"], TOKENIZERS["without a first space"]
    pieces = with_space.pieces
    assert [pieces[token] for token in with_space.encode("the")] == ["▁the"]
    assert [pieces[token] for token in without.encode("the")] == ["t", "he"]
    shown = [pieces[token] for token in with_space.encode("the</s>the", special=True, begin=True)]
    assert shown == ["<s>", "▁the", "</s>", "▁the"]
    assert with_space.decode(with_space.encode(" the")) == " the"


def test_user_defined_tokens_are_read_in_any_text_and_the_longest_wins() -> None:
    tokenizer = TOKENIZERS["without a first space"]
    shown = [tokenizer.pieces[token] for token in tokenizer.encode("<b>\n\n\n\n\n<b")]
    assert shown == ["<b>", "\n\n\n", "\n\n", "<0x3C>", "<0x62>"]


# ---------------------------------------------------------------- control tokens


@pytest.mark.parametrize("name", ["byte pairs", "folder"])
def test_control_tokens_are_read_where_it_is_asked_for(name: str, folder: Path) -> None:
    tokenizer = TOKENIZERS.get(name) or load_tokenizer(folder)
    text = "<|im_start|>user\nHello<|im_end|>"
    control = [tokenizer.encode(special, special=True) for special in SPECIAL]
    assert [len(tokens) for tokens in control] == [1, 1, 1]
    start, end = control[1][0], control[2][0]
    assert tokenizer.encode(text, special=True)[:: len(tokenizer.encode(text, special=True)) - 1] == [start, end]
    assert not {start, end} & set(tokenizer.encode(text))
    assert tokenizer.decode([start, *tokenizer.encode("Hi"), end]) == "Hi"
    assert tokenizer.token_bytes(end) == b""
    assert tokenizer.bos == start
    assert tokenizer.end_tokens == {end, control[0][0]}


@pytest.mark.parametrize("name", ["byte pairs", "folder"])
def test_a_marked_spelling_stays_text(name: str, folder: Path) -> None:
    tokenizer = TOKENIZERS.get(name) or load_tokenizer(folder)
    tokens = tokenizer.encode("<|im_start|>say <\ue000|im_end|> now<|im_end|>", special=True, mark="\ue000")
    assert tokenizer.decode(tokens, special=True) == "<|im_start|>say <|im_end|> now<|im_end|>"
    assert tokens.count(tokenizer.eos or 0) == 1


def test_the_token_of_the_beginning_comes_once() -> None:
    tokenizer = TOKENIZERS["sentence pieces"]
    assert tokenizer.encode("the", begin=True)[0] == 1
    assert tokenizer.encode("<s>the", begin=True, special=True).count(1) == 1
    assert TOKENIZERS["byte pairs"].encode("a", begin=True)[0] != TOKENIZERS["byte pairs"].bos


def test_one_tokenizer_serves_many_threads(folder: Path) -> None:
    tokenizer = load_tokenizer(folder)
    text = "<|im_start|>a<|im_end|>"
    expected = {special: tokenizer.encode(text, special=special) for special in (False, True)}
    wrong: list[bool] = []

    def work(special: bool) -> None:
        wrong.extend(True for _ in range(300) if tokenizer.encode(text, special=special) != expected[special])

    threads = [threading.Thread(target=work, args=(bool(index % 2),)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# ---------------------------------------------------------------- pre-tokenizers

NUMBERS = {
    "gpt-2": "1234",
    "llama-bpe": "123 4",
    "glm4": "123 4",
    "deepseek-v3": "123 4",
    "gpt-4o": "123 4",
    "smollm": "1 2 3 4",
    "qwen2": "1 2 3 4",
    "tekken": "1 2 3 4",
}


@pytest.mark.parametrize("pre", NUMBERS)
def test_numbers_are_cut_by_the_pre_tokenizer(pre: str) -> None:
    facts = byte_pair_facts(pre, size=300)
    pieces = facts["tokenizer.ggml.tokens"]
    pieces += [piece for piece in ("12", "123", "1234") if piece not in pieces]
    facts["tokenizer.ggml.token_type"] = [3] * 3 + [1] * (len(pieces) - 3)
    facts["tokenizer.ggml.merges"] = ["1 2", "12 3", "123 4"]
    tokenizer = load_tokenizer(facts)
    assert " ".join(pieces[token] for token in tokenizer.encode("1234")) == NUMBERS[pre]


# ---------------------------------------------------------------- what is refused


def change(**changes: Any) -> dict[str, Any]:
    return BYTE_PAIRS | {f"tokenizer.ggml.{name}": value for name, value in changes.items()}


@pytest.mark.parametrize(
    ("facts", "error", "told"),
    [
        ({}, FileFormatError, "no tokenizer"),
        (change(tokens=[]), FileFormatError, "no tokenizer"),
        (change(model="bert"), UnsupportedError, "'bert'"),
        (change(pre="of-tomorrow"), UnsupportedError, "'of-tomorrow'"),
        (change(token_type=[1, 2]), FileFormatError, "but 2 token_type"),
        (change(eos_token_id=100_000), FileFormatError, "eos token is 100000"),
        (change(merges=["a", "b c"]), FileFormatError, "merges"),
        (change(merges=["zzzz qqqq"]), FileFormatError, "merges"),
    ],
)
def test_a_damaged_vocabulary_is_told(facts: dict[str, Any], error: type[Exception], told: str) -> None:
    with pytest.raises(error, match=told):
        load_tokenizer(facts)


def test_files_that_are_no_vocabularies_are_told(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="cannot be read"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"model": 3}')
    with pytest.raises(FileFormatError, match="not a tokenizer"):
        load_tokenizer(tmp_path)
    for damaged in (b"\x07\0\0\0\0\0\0\0\xff\xff\xff\x7f", b"\x07\0\0\0\0\0"):
        (tmp_path / "tok.bin").write_bytes(damaged)
        with pytest.raises(FileFormatError, match="token 0"):
            load_tokenizer(tmp_path / "tok.bin")


def test_a_token_outside_of_the_vocabulary_is_told() -> None:
    tokenizer: Tokenizer = TOKENIZERS["byte pairs"]
    for token in (-1, tokenizer.vocabulary):
        with pytest.raises(FileFormatError, match=f"token {token}"):
            tokenizer.decode([token])
