"""Real models, of the folder that TILEWRIGHT_TEST_MODELS names: tokens as llama.cpp has them, and an answer."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from tests.llm.models import real_model
from tests.llm.vocabularies import HARD_TEXTS
from tilewright import Context, Device, Tensor
from tilewright.llm.chat_model import open_model
from tilewright.llm.files.load import load_model
from tilewright.llm.generator import Generator
from tilewright.llm.sampling import Sampling
from tilewright.llm.tokens.tokenizer_files import load_tokenizer

pytestmark = pytest.mark.slow
MODELS = ["smollm2.gguf", "gemma3-270m.gguf", "qwen2.5-coder-1.5b.gguf"]
LETTERS = "aA zZ  \n\t\r.,!?'\"0123456789éüß日本語中文한국어🎉👩\u200d\u0301<|>_-+=*/\\#@$%&(){}[]ÄЖ\u3000\xa0\u017f½²٣"
SENTENCES = [
    "The sun rises in the east and",
    "Water boils at",
    "My favourite book is about",
    "Scientists have found that",
]
ROUNDING = 0.4  # of a difference of logits
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


def texts() -> list[str]:
    """llama.cpp takes `</s>` as a control token in every vocabulary, whatever the file says of it."""
    generator = random.Random(7)
    made = ["".join(generator.choices(LETTERS, k=generator.randint(1, 60))) for _ in range(200)]
    return [text.replace("</s>", "") for text in HARD_TEXTS] + made


@pytest.mark.parametrize("name", MODELS)
def test_tokens_are_those_of_llama_cpp(name: str) -> None:
    llama_cpp = pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    path = real_model(name)
    theirs = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
    ours = load_tokenizer(load_model(path).facts)
    for text in texts():
        for special in (False, True):
            expected = theirs.tokenize(text.encode(), add_bos=False, special=special)
            assert ours.encode(text, special=special) == expected, text
        assert ours.decode(ours.encode(text)) == text


@pytest.mark.parametrize("name", MODELS[1:])
def test_sentences_are_continued_as_by_llama_cpp(name: str) -> None:
    """20 tokens of most of them. Both round activations to 8 bits, in other runs of elements: where two tokens are as
    probable as each other within that rounding, either is right, and there alone a continuation may part."""
    llama_cpp = pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    path = real_model(name)
    theirs = llama_cpp.Llama(str(path), n_ctx=256, verbose=False)
    generator = Generator(load_model(path).model, context=256, end_tokens=())
    equal = 0
    for sentence in SENTENCES:
        theirs.reset()
        prompt = theirs.tokenize(sentence.encode())
        expected = list(itertools.islice(theirs.generate(prompt, temp=0.0, repeat_penalty=1.0), 20))
        found = generator.run(generator.submit(prompt, Sampling(temperature=0.0), 20))
        parted = next((at for at, pair in enumerate(zip(found, expected)) if pair[0] != pair[1]), None)
        if parted is None:
            equal += 1
        else:
            logits = generator._network.run_one(0, [*prompt, *expected[:parted]], 0)[0]
            assert logits[found[parted]] - logits[expected[parted]] < ROUNDING, sentence
    assert equal >= len(SENTENCES) // 2


@pytest.mark.parametrize("name", MODELS[1:])
def test_logits_are_nearer_to_exact_ones_than_those_of_llama_cpp(name: str) -> None:
    """Exact are those of float activations. Where a continuation parts from llama.cpp's, it is not by our rounding."""
    llama_cpp = pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    path = real_model(name)
    theirs = llama_cpp.Llama(str(path), n_ctx=64, verbose=False, logits_all=True)
    tokens = theirs.tokenize(SENTENCES[0].encode())
    theirs.eval(tokens)
    model = load_model(path).model
    logits = {}
    for setting in (0, 1):
        with Context(QUANTISED_ACTIVATIONS=setting):
            logits[setting] = model(Tensor([tokens])).numpy()[0, 1:]
    highest = np.argsort(logits[0])[:, -50:]
    rounded, other = (
        np.take_along_axis(each - logits[0], highest, 1) for each in (logits[1], theirs.scores[1 : len(tokens)])
    )
    ours, their = (np.sqrt(np.mean((error - error.mean(1, keepdims=True)) ** 2)) for error in (rounded, other))
    assert 0 < ours < their < 0.3


@pytest.mark.parametrize("device", ["CPU", "OPENCL"])
def test_the_capital_of_france(device: str) -> None:
    reason = Device.availability()[device]
    if reason is not None:
        pytest.skip(f"{device}: {reason}")
    model = open_model(str(real_model("smollm2.gguf")), device=device)
    assert model.answer(QUESTION, limit=20) == "The capital of France is Paris."


def test_a_conversation_goes_on_from_what_is_held() -> None:
    model = open_model(str(real_model("smollm2.gguf")))
    said = model.answer(QUESTION)
    talk = [*QUESTION, {"role": "assistant", "content": said}, {"role": "user", "content": "And of Italy?"}]
    request = model.generator.submit(model.encode_chat(talk), limit=20)
    assert "Rome" in "".join(model.stream(request))
    assert request.reused > 40
