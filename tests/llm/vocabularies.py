"""Small vocabularies for tests: byte-level BPE learnt from a few sentences, and pieces with scores."""

from __future__ import annotations

import json
from typing import Any

import tokenizers

CORPUS = [
    "Once upon a time there was a little girl who didn't know what 1234 and 56789 are.",
    "The capital of France is Paris. The capital of Italy is Rome, and that's all I'll say!",
    "def f(x):\n    return x + 1\n\n\nfor i in range(10):\n\tprint(f(i))\n",
    "Übermäßig viele Wörter, naïve café, 日本語の文字, Привет мир, שלום, 🎉🎉 👩‍👩‍👧",
] * 3
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
# Characters of one to four bytes. To draw from all of Unicode, hypothesis first looks at each of its characters.
ALPHABET = "aB 0'\n\x00éßж\u0301漢\u200b😀👧"
# What is easily taken apart or put together wrongly.
HARD_TEXTS = [
    "",
    " ",
    "  ",
    "a",
    " a",
    "a ",
    "Hello world",
    "  two  spaces   three\t\ttabs\n\n\nlines\r\n  end  ",
    "1234567890 12 3.14159 1,000,000 ½ ٣٤٥ 四",
    "don't DON'T we'll I'D it's o'clock 'sudden",
    "日本語の文字と漢字、ひらがな。中文字符 한국어 ไทย हिन्दी",
    "🎉 👩‍👩‍👧 🇫🇷 e\u0301 é ﬁ \u200b\ufeff",
    "x = {'a': [1, 2], \"b\": None}  # comment\nif x != y: return ~x ** 2\n",
    "<|im_start|>user\nignore this<|im_end|>",
    "<|im_end|><|endoftext|><unk><s></s><eos><bos><end_of_turn>",
    "\x00\x01\x7f\x80\xff",
    "a" * 300,
    "ab" * 150 + "\n" * 40,
    "https://example.org/path?q=1&r=%20#top ünïcödé_names.py",
]


def byte_pair_facts(pre: str = "gpt-2", size: int = 400) -> dict[str, Any]:
    """The facts of a GGUF file with a vocabulary of byte-level BPE that was learnt from CORPUS."""
    learner = tokenizers.Tokenizer(tokenizers.models.BPE())
    learner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=alphabet, special_tokens=list(SPECIAL), show_progress=False
    )
    learner.train_from_iterator(CORPUS, trainer)
    model = json.loads(learner.to_str())["model"]
    pieces = [piece for piece, _ in sorted(model["vocab"].items(), key=lambda pair: pair[1])]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.token_type": [3 if piece in SPECIAL else 1 for piece in pieces],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in model["merges"]],
        "tokenizer.ggml.bos_token_id": pieces.index("<|im_start|>"),
        "tokenizer.ggml.eos_token_id": pieces.index("<|im_end|>"),
    }


def sentence_piece_facts(adds_space: bool = True) -> dict[str, Any]:
    """Pieces with scores: the characters of a word, some of its parts, and the bytes."""
    special = ["<unk>", "<s>", "</s>"]
    as_bytes = [f"<0x{byte:02X}>" for byte in range(256)]
    words = [
        "▁t",
        "he",
        "▁the",
        "in",
        "▁a",
        "er",
        "▁th",
        "re",
        "▁",
        "e",
        "t",
        "a",
        "h",
        "i",
        "n",
        "r",
        "o",
        "n't",
        "ab",
    ]
    user_defined = ["\n\n", "\n\n\n", "<b>"]
    pieces = special + as_bytes + words + user_defined
    kinds = [2, 3, 3] + [6] * 256 + [1] * len(words) + [4] * len(user_defined)
    scores = [0.0] * 259 + [-float(rank) for rank in range(len(words))] + [0.0] * len(user_defined)
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_space_prefix": adds_space,
    }
