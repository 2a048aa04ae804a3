"""Byte-level BPE, the tokenizer "gpt2" of GGUF files (GPT-2, SmolLM, Llama 3, Qwen, GLM, DeepSeek). In: a vocabulary,
its merges and the name of the pre-tokenizer, which cuts a text into words before anything is merged. Out: a function
from text to tokens, made by the library `tokenizers`, and the bytes of a piece."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from tilewright.base.errors import FileFormatError, UnsupportedError
from tilewright.llm.tokens.sentence_pieces import Encode

# ---------------------------------------------------------------- pre-tokenizers

_HAN_AND_KANA = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_HAN_AND_HANGUL = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"|\s*[\r\n]+|\s+(?!\S)|\s+"


def _words(digits: str) -> str:
    """GPT-4's rule: a word may begin with one non-letter, `digits` is the pattern of a number, and line
    ends belong to the punctuation before them."""
    return _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|" + digits + r"| ?[^\s\p{L}\p{N}]+[\r\n]*" + _SPACES


def _cased_words(digits: str, ending: str) -> str:
    """GPT-4o's rule: capitals begin a word."""
    upper, lower = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
    first = rf"[^\r\n\p{{L}}\p{{N}}]?{upper}*{lower}+{ending}"
    second = rf"[^\r\n\p{{L}}\p{{N}}]?{upper}+{lower}*{ending}"
    return f"{first}|{second}|{digits}" + r"| ?[^\s\p{L}\p{N}]+[\r\n/]*" + _SPACES


_DEEPSEEK = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
    + _SPACES
)


class PreTokenizer(NamedTuple):
    """Expressions that cut a text one after the other; whether a word that is a token is taken without merging; whether
    a text begins with `bos` where the file does not say."""

    expressions: tuple[str, ...]
    takes_whole_words: bool = False
    adds_bos: bool = False


_BY_DIGIT = PreTokenizer((r"\p{N}", _GPT2))
_PLAIN = PreTokenizer((_GPT2,))
_QWEN = PreTokenizer((_words(r"\p{N}"),))
_THREE_DIGITS = PreTokenizer((_words(r"\p{N}{1,3}"),))
_GLM4 = PreTokenizer(_THREE_DIGITS.expressions, takes_whole_words=True)
_LLAMA3 = PreTokenizer(_THREE_DIGITS.expressions, takes_whole_words=True, adds_bos=True)
_GPT4O = PreTokenizer((_cased_words(r"\p{N}{1,3}", f"{_CONTRACTIONS}?"),))

_KNOWN: dict[str, PreTokenizer] = {
    "default": PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
    **dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo", "jais", "mellum", "trillion", "granite-docling"), _PLAIN),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"), _BY_DIGIT),
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "lfm2"), _LLAMA3),
    **dict.fromkeys(("chatglm-bpe", "dbrx", "smaug-bpe"), _THREE_DIGITS),
    **dict.fromkeys(("glm4", "glm5"), _GLM4),
    **dict.fromkeys(("qwen2", "stablelm2", "deepseek-r1-qwen", "megrez", "hunyuan", "grok-2", "solar-open"), _QWEN),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2"), _GPT4O),
    "tekken": PreTokenizer((_cased_words(r"\p{N}", ""),), takes_whole_words=True, adds_bos=True),
    **dict.fromkeys(
        ("deepseek-v3", "hunyuan-dense", "joyai-llm"), PreTokenizer((r"\p{N}{1,3}", _HAN_AND_KANA, _DEEPSEEK))
    ),
    "deepseek-coder": PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _HAN_AND_HANGUL, r"\p{N}")),
}


def pre_tokenizer(name: str) -> PreTokenizer:
    if name not in _KNOWN:
        message = f"the pre-tokenizer {name!r} of the file is not known"
        raise UnsupportedError("tokenizer", message, f"the known ones are {', '.join(sorted(_KNOWN))}")
    return _KNOWN[name]


# ---------------------------------------------------------------- tokens and bytes


def byte_pair_encoder(pieces: Mapping[str, int], merges: Sequence[str], words: PreTokenizer) -> Encode:
    library = load_library()
    pairs = [tuple(merge.split(" ", 1)) for merge in merges]
    try:
        model = library.models.BPE(dict(pieces), pairs, ignore_merges=words.takes_whole_words)
    except Exception as error:  # the library raises no narrower class
        raise FileFormatError(
            "tokenizer", f"its merges do not fit its tokens: {error}", "fetch the file again"
        ) from error
    made = library.Tokenizer(model)
    cuts = [library.pre_tokenizers.Split(library.Regex(cut), "isolated") for cut in words.expressions]
    as_bytes = library.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.pre_tokenizer = library.pre_tokenizers.Sequence([*cuts, as_bytes])
    encode: Callable[..., Any] = made.encode
    return lambda text: list(encode(text, add_special_tokens=False).ids)


@functools.cache
def _byte_of_character() -> dict[str, int]:
    """GPT-2 writes each byte as a character that can be seen: itself where it is printable in Latin-1, otherwise the
    next of those from 256 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in set(printable)]
    return table | {chr(256 + count): byte for count, byte in enumerate(others)}


def bytes_of_piece(piece: str) -> bytes:
    """The bytes that a piece stands for. A character that stands for no byte, in a token added later, is itself."""
    table = _byte_of_character()
    found = bytearray()
    for character in piece:
        found += bytes((table[character],)) if character in table else character.encode()
    return bytes(found)


def load_library() -> Any:
    try:
        import tokenizers
    except ImportError as error:
        remedy = "install it: `pip install tokenizers`, or `pip install 'tilewright[llm]'`"
        raise UnsupportedError("tokenizer", "the package tokenizers is not installed", remedy) from error
    return tokenizers
