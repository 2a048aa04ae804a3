"""Tokenizers from files. In: the key-value pairs of a GGUF file, a Hugging Face folder with tokenizer.json, or the
vocabulary of stories260K. Out: a `Tokenizer`; an error that names what a file lacks or asks for."""

from __future__ import annotations

import json
import re
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tilewright.base.errors import FileError, FileFormatError, UnsupportedError
from tilewright.llm.tokens.byte_pairs import byte_pair_encoder, bytes_of_piece, load_library, pre_tokenizer
from tilewright.llm.tokens.sentence_pieces import SPACE, sentence_piece_encoder
from tilewright.llm.tokens.tokenizer import BYTE, CONTROL, NORMAL, UNKNOWN, USER_DEFINED, Tokenizer
from tilewright.nn.formats.gguf_values import is_list
from tilewright.nn.formats.mapped import read_json

_MAX_VOCABULARY = 1 << 22


def load_tokenizer(source: Mapping[str, Any] | str | Path) -> Tokenizer:
    """The tokenizer of a model: facts are those of a GGUF file, a path is a Hugging Face folder or the vocabulary of a
    model of llama2.c."""
    if isinstance(source, Mapping):
        return tokenizer_of_facts(source)
    path = Path(source)
    return tokenizer_of_folder(path) if path.is_dir() else tokenizer_of_stories(path)


# ---------------------------------------------------------------- GGUF


def tokenizer_of_facts(facts: Mapping[str, Any]) -> Tokenizer:
    model = facts.get("tokenizer.ggml.model")
    pieces = facts.get("tokenizer.ggml.tokens")
    if model is None or not is_list(pieces) or not 0 < len(pieces) <= _MAX_VOCABULARY:
        raise FileFormatError("tokenizer", "the file holds no tokenizer", "take a file of a language model")
    if model not in ("gpt2", "llama"):
        known = "byte-level BPE ('gpt2') and SentencePiece ('llama') are"
        raise UnsupportedError("tokenizer", f"the tokenizer {model!r} of the file is not known", f"{known}")
    kinds = _list_of(facts, "token_type", len(pieces)) or [NORMAL] * len(pieces)
    ids = {name: _token_of(facts, name, len(pieces)) for name in ("bos", "eos", "eot", "eom", "unknown")}
    ends = [ids[name] for name in ("eot", "eom") if ids[name] is not None]
    mergeable = {piece: token for token, piece in enumerate(pieces) if kinds[token] not in (CONTROL, UNKNOWN)}
    common: dict[str, Any] = {"bos": ids["bos"], "eos": ids["eos"], "end_tokens": ends}
    if model == "gpt2":
        words = pre_tokenizer(str(facts.get("tokenizer.ggml.pre", "default")))
        encode = byte_pair_encoder(mergeable, facts.get("tokenizer.ggml.merges") or [], words)
        adds_bos = facts.get("tokenizer.ggml.add_bos_token", words.adds_bos)
        return Tokenizer(pieces, kinds, encode, _byte_level_bytes(pieces, kinds), adds_bos=bool(adds_bos), **common)
    scores = _list_of(facts, "scores", len(pieces)) or [0.0] * len(pieces)
    adds_bos = facts.get("tokenizer.ggml.add_bos_token", True)
    adds_space = facts.get("tokenizer.ggml.add_space_prefix", True)
    return _sentence_pieces(pieces, kinds, scores, ids["unknown"], adds_bos, adds_space, **common)


def _list_of(facts: Mapping[str, Any], name: str, count: int) -> Sequence[Any]:
    found: Sequence[Any] = facts.get(f"tokenizer.ggml.{name}", [])
    if not is_list(found) or len(found) not in (0, count):
        size = len(found) if is_list(found) else repr(found)
        raise FileFormatError("tokenizer", f"the file has {count} tokens but {size} {name}", "fetch the file again")
    return found


def _token_of(facts: Mapping[str, Any], name: str, count: int) -> int | None:
    found = facts.get(f"tokenizer.ggml.{name}_token_id")
    if found is None or found == 0xFFFFFFFF or found == -1:
        return None
    if not isinstance(found, int) or not 0 <= found < count:
        raise FileFormatError(
            "tokenizer", f"the {name} token is {found!r}, outside the vocabulary of {count}", "fetch the file again"
        )
    return found


def _byte_level_bytes(pieces: Sequence[str], kinds: Sequence[int]) -> Callable[[int], bytes]:
    def bytes_of(token: int) -> bytes:
        return pieces[token].encode() if kinds[token] == USER_DEFINED else bytes_of_piece(pieces[token])

    return bytes_of


_is_byte = re.compile("<0x[0-9A-Fa-f]{2}>").fullmatch


def _piece_bytes(pieces: Sequence[str], kinds: Sequence[int]) -> Callable[[int], bytes]:
    def bytes_of(token: int) -> bytes:
        piece = pieces[token]
        if kinds[token] == USER_DEFINED:
            return piece.encode()
        return bytes((int(piece[3:5], 16),)) if _is_byte(piece) else piece.replace(SPACE, " ").encode()

    return bytes_of


def _sentence_pieces(
    pieces: Sequence[str],
    kinds: Sequence[int],
    scores: Sequence[float],
    unknown: int | None,
    adds_bos: bool,
    adds_space: bool,
    **common: Any,
) -> Tokenizer:
    bytes_at: dict[int, int] = {}
    for token, kind in enumerate(kinds):
        if kind == BYTE and _is_byte(pieces[token]):
            bytes_at[int(pieces[token][3:5], 16)] = token
    silent = (CONTROL, UNKNOWN, BYTE)
    mergeable = {piece: token for token, piece in enumerate(pieces) if kinds[token] not in silent}
    encode = sentence_piece_encoder(mergeable, scores, bytes_at, unknown)

    def encode_spaces(text: str) -> list[int]:
        return encode(text.replace(" ", SPACE))

    return Tokenizer(
        pieces,
        kinds,
        encode_spaces,
        _piece_bytes(pieces, kinds),
        adds_bos=bool(adds_bos),
        adds_space=bool(adds_space),
        **common,
    )


# ---------------------------------------------------------------- Hugging Face


def tokenizer_of_folder(folder: Path) -> Tokenizer:
    """From tokenizer.json, with tokenizer_config.json and generation_config.json where they are there."""
    path = folder / "tokenizer.json"
    text = _read_text(path)
    library = load_library()
    try:
        made = library.Tokenizer.from_str(text)
        described = json.loads(text)
    except Exception as error:  # the library raises no narrower class
        raise FileFormatError("tokenizer", f"{str(path)!r} is not a tokenizer: {error}", "fetch it again") from error
    return _LibraryTokenizer(made, described, read_settings(folder, "tokenizer_config.json"), _ends_of(folder))


class _LibraryTokenizer(Tokenizer):
    """The tokenizer of a tokenizer.json, run by the library that defines the format."""

    def __init__(self, made: Any, described: Any, settings: Mapping[str, Any], ends: Sequence[int]) -> None:
        vocabulary: dict[str, int] = made.get_vocab(with_added_tokens=True)
        size = max(vocabulary.values(), default=-1) + 1
        if not 0 < size <= _MAX_VOCABULARY:
            raise FileFormatError("tokenizer", f"its vocabulary has {size} tokens", "fetch tokenizer.json again")
        pieces, kinds = [""] * size, [NORMAL] * size
        for piece, token in vocabulary.items():
            pieces[token] = piece
        for token, added in made.get_added_tokens_decoder().items():
            kinds[token] = CONTROL if added.special else USER_DEFINED
        decoder = json.dumps(described.get("decoder"))
        bytes_of = _byte_level_bytes(pieces, kinds) if "ByteLevel" in decoder else _piece_bytes(pieces, kinds)
        bos, eos = (vocabulary.get(_text_of(settings.get(f"{name}_token"))) for name in ("bos", "eos"))
        adds_bos = bos is not None and made.encode("").ids[:1] == [bos]
        first = made.encode("a", add_special_tokens=False).tokens[:1]
        adds_space = bool(first) and first[0].startswith(SPACE)
        self._made = made
        self._lock = threading.Lock()
        super().__init__(
            pieces, kinds, self._plain, bytes_of,
            bos=bos, eos=eos, end_tokens=[end for end in ends if end < size], adds_bos=adds_bos, adds_space=adds_space,
        )  # fmt: skip

    def _plain(self, text: str) -> list[int]:
        return self._by_library(text, special=False)

    def _by_library(self, text: str, special: bool) -> list[int]:
        with self._lock:
            self._made.encode_special_tokens = not special
            return list(self._made.encode(text, add_special_tokens=False).ids)

    def _encode_whole(self, text: str, special: bool, mark: str) -> list[int]:
        """Whole where it can be, since what the library does to a text depends on where the text begins."""
        if not mark or mark not in text:
            return self._by_library(text, special)
        marked = "|".join(re.escape(spelling[0] + mark + spelling[1:]) for spelling in self.control_texts)
        found: list[int] = []
        for count, piece in enumerate(re.split(f"({marked})", text)):
            found += self._by_library(piece.replace(mark, ""), special and count % 2 == 0) if piece else []
        return found


def _ends_of(folder: Path) -> list[int]:
    """The end tokens of generation_config.json, which are a number or a list."""
    found = read_settings(folder, "generation_config.json").get("eos_token_id")
    return [token for token in (found if isinstance(found, list) else [found]) if isinstance(token, int)]


def _text_of(token: Any) -> str:
    """The spelling of a token, which is a text or a record of it."""
    return str(token.get("content", "")) if isinstance(token, dict) else str(token or "")


def read_settings(folder: Path, name: str) -> dict[str, Any]:
    """The JSON object in a file of a folder; empty where there is no such file."""
    return read_json("tokenizer", folder / name) if (folder / name).is_file() else {}


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FileError("tokenizer", f"{str(path)!r} cannot be read: {error}", "fetch the whole folder") from error


# ---------------------------------------------------------------- stories260K

_STORIES_BOS, _STORIES_EOS = 1, 2


def tokenizer_of_stories(path: Path) -> Tokenizer:
    """From the vocabulary of a model of llama2.c, such as tok512.bin of stories260K: the greatest length of a piece,
    then for each token its score, its length and its bytes."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise FileError("tokenizer", f"{str(path)!r} cannot be read: {error}", "put it beside the model") from error
    pieces: list[str] = []
    scores: list[float] = []
    offset = 4
    while offset < len(data):
        if offset + 8 > len(data):
            raise FileFormatError("tokenizer", f"{str(path)!r} ends inside token {len(pieces)}", "fetch it again")
        score, size = struct.unpack_from("<fi", data, offset)
        offset += 8
        if not 0 <= size <= len(data) - offset:
            raise FileFormatError(
                "tokenizer", f"{str(path)!r} says that token {len(pieces)} has {size} bytes", "fetch it again"
            )
        pieces.append(data[offset : offset + size].decode("utf-8", "replace").replace(" ", SPACE))
        scores.append(score)
        offset += size
    pieces[:3] = "<unk>", "<s>", "</s>"
    kinds = [CONTROL if token < 3 else BYTE if _is_byte(piece) else NORMAL for token, piece in enumerate(pieces)]
    return _sentence_pieces(pieces, kinds, scores, 0, True, True, bos=_STORIES_BOS, eos=_STORIES_EOS)
