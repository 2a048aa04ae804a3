"""Generation on stories260K: the stored tokens come, alone and beside others, from prompts in pieces and from what a
slot holds already; requests end as they should."""

from __future__ import annotations

import numpy as np
import pytest

from tests.llm.models import STORIES_TOKENS, stories
from tilewright import Context, Tensor
from tilewright.base.errors import ConfigError, GenerationError
from tilewright.base.events import subscribe
from tilewright.llm import slots as slots_module
from tilewright.llm.generator import Generator, Request
from tilewright.llm.network.model import Transformer
from tilewright.llm.sampling import Sampler, Sampling
from tilewright.llm.slots import PIECES, Scores, piece_size

TOKENS = STORIES_TOKENS
CONTEXT = 256


@pytest.fixture(scope="module")
def model() -> Transformer:
    return stories()


@pytest.fixture(scope="module")
def one(model: Transformer) -> Generator:
    """One slot, shared by tests so that its calls are recorded once."""
    return Generator(model, context=CONTEXT, end_tokens=())


@pytest.fixture(scope="module")
def four(model: Transformer) -> Generator:
    return Generator(model, slots=4, context=CONTEXT, end_tokens=())


def finish(generator: Generator) -> int:
    """The number of steps until nothing is left to do."""
    count = 0
    while generator.step():
        count += 1
    return count


def test_the_stored_tokens_come(one: Generator) -> None:
    request = one.submit(TOKENS[:1], limit=199)
    assert one.run(request) == TOKENS[1:200]
    assert request.finished == "length"
    assert request.prompt_tokens == 1
    assert request.first_token_at <= request.finished_at
    assert not one.step()


def test_one_slot_never_reads_what_was_not_written(model: Transformer) -> None:
    """So its memory need not be cleared: pages that no token has reached are not taken from the system."""
    generator = Generator(model, context=CONTEXT, end_tokens=())
    assert generator._network.is_symbolic
    for layer in generator._network._cache.layers:
        for memory in layer:
            memory.assign(float("nan")).realize()
    assert generator.run(generator.submit(TOKENS[:9], limit=60)) == TOKENS[9:69]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("count", [2, 7, 8, 9, 16, 31, 40, 129, 150])
def test_a_prompt_in_pieces_continues_as_stored(one: Generator, count: int) -> None:
    one.run(one.submit([5, 6], limit=1))  # nothing of the prompt is held
    request = one.submit(TOKENS[:count], limit=4)
    assert one.run(request) == TOKENS[count : count + 4]
    assert request.reused == 0


def test_pieces_are_not_half_empty_and_take_all() -> None:
    assert max(PIECES) == 128
    for count in range(2, 400):
        for largest in (8, 32, 128):
            size = piece_size(count, largest)
            assert size in PIECES
            assert size <= largest
            assert count >= size or size <= max(2 * count, PIECES[0])
    assert {piece_size(count, 128) for count in range(9, 17)} == {16}, "a short question is one piece, not padded to 32"


def test_what_a_slot_holds_is_not_computed_again(one: Generator) -> None:
    one.run(one.submit(TOKENS[:30], limit=20))
    held = one.submit(TOKENS[:40], limit=3)
    assert one.run(held) == TOKENS[40:43]
    assert held.reused == 39
    again = one.submit(TOKENS[:40], limit=3)
    assert (one.run(again), again.reused) == (TOKENS[40:43], 39)
    other = one.submit([*TOKENS[:10], 77, 78], limit=3)
    one.run(other)
    assert other.reused == 10
    back = one.submit(TOKENS[:12], limit=3)
    assert (one.run(back), back.reused) == (TOKENS[12:15], 10), "what was overwritten is computed again"


def test_requests_run_together_and_alone_alike(four: Generator) -> None:
    """Six requests on four slots, of which two wait; one is cancelled on the way."""
    lengths = [1, 40, 3, 90, 25, 60]
    requests = [four.submit(TOKENS[:length], limit=20 + length % 7) for length in lengths]
    for _ in range(9):
        four.step()
    requests[2].cancel()
    finish(four)
    for length, request in zip(lengths, requests):
        expected = TOKENS[length : length + 20 + length % 7]
        if request is requests[2]:
            assert request.finished == "cancelled"
            assert request.tokens == expected[: len(request.tokens)]
            assert len(request.tokens) < len(expected)
        else:
            assert request.finished == "length"
            assert request.tokens == expected


def test_a_long_prompt_takes_turns_with_running_requests(four: Generator) -> None:
    running = four.submit(TOKENS[:3], limit=30)
    while not running.tokens:
        four.step()
    long = four.submit(TOKENS[:200], limit=1)
    before = len(running.tokens)
    steps = 0
    while not long.finished:
        four.step()
        steps += 1
    assert len(running.tokens) - before >= steps // 2 - 1
    finish(four)
    assert long.tokens == TOKENS[200:201]
    assert running.tokens == TOKENS[3:33]


def test_a_request_takes_the_slot_that_knows_its_beginning(model: Transformer) -> None:
    generator = Generator(model, slots=3, context=64, end_tokens=())
    first = [generator.submit([1, 40 + index, 50, 60], limit=2) for index in range(3)]
    finish(generator)
    assert [request.reused for request in first] == [0, 0, 0]
    second = [generator.submit([1, 40 + index, 50, 60, 70], limit=2) for index in (2, 0, 1)]
    finish(generator)
    assert [request.reused for request in second] == [4, 4, 4]


def test_a_beginning_that_another_slot_holds_is_copied(model: Transformer) -> None:
    """By requests that come together too: one of them computes the beginning. Less than a piece is computed."""
    generator = Generator(model, slots=4, context=CONTEXT, end_tokens=())
    ends = ([], [7], [8, 9], [6] * 60)
    alone = Generator(model, context=CONTEXT, end_tokens=())
    expected = [alone.run(alone.submit([*TOKENS[:40], *end], limit=4)) for end in ends]
    for _ in range(3):
        requests = [generator.submit([*TOKENS[:40], *end], limit=4) for end in ends]
        few = generator.submit([*TOKENS[: PIECES[0] - 1], 5], limit=1)
        finish(generator)
        assert requests[0].tokens == TOKENS[40:44]
        # The others read their prompts in turns with it.
        assert [request.reused >= 32 for request in sorted(requests, key=lambda each: each.reused)[1:]] == [True] * 3
        assert few.reused < PIECES[0]
        assert [request.tokens for request in requests] == expected
        for row in range(4):  # other prompts take the slots
            generator.submit([row + 3] * 50, limit=1)
        finish(generator)


def test_sampling_depends_on_the_seed_alone(four: Generator) -> None:
    sampling = Sampling(temperature=1.0, top_k=40, seed=11)
    alone = four.run(four.submit(TOKENS[:5], sampling, limit=15))
    beside = [four.submit(TOKENS[:5], sampling, limit=15) for _ in range(2)]
    others = [four.submit(TOKENS[: 9 + index], Sampling(temperature=1.0, seed=index), limit=15) for index in range(2)]
    finish(four)
    assert [request.tokens for request in beside] == [alone, alone]
    assert others[0].tokens != alone


def test_an_answer_ends_at_an_end_token_or_with_the_context(model: Transformer) -> None:
    generator = Generator(model, context=20, end_tokens=(TOKENS[8],))
    request = generator.submit(TOKENS[:4])
    assert generator.run(request) == TOKENS[4:8]
    assert request.finished == "stop"
    free = Generator(model, context=20, end_tokens=())
    filled = free.submit(TOKENS[:4])
    assert free.run(filled) == TOKENS[4:20]
    assert filled.finished == "length"
    last = free.submit(TOKENS[:19], limit=50)
    assert free.run(last) == TOKENS[19:20]


def test_the_cache_grows_and_keeps_what_it_holds(model: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots_module, "FIRST_LENGTH", 16)
    generator = Generator(model, slots=2, context=CONTEXT, end_tokens=())
    small = generator._network.nbytes
    requests = [generator.submit(TOKENS[:length], limit=150) for length in (10, 4)]
    finish(generator)
    assert [request.tokens for request in requests] == [TOKENS[10:160], TOKENS[4:154]]
    assert generator._network.nbytes > small


def test_a_device_without_symbolic_sizes_gives_the_same_tokens(
    model: Transformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots_module, "has_symbolic_sizes", lambda device: False)
    monkeypatch.setattr(slots_module, "FIRST_LENGTH_WITHOUT_SYMBOLIC", 32)
    generator = Generator(model, slots=2, context=CONTEXT, end_tokens=())
    requests = [generator.submit(TOKENS[:length], limit=20) for length in (40, 6)]
    finish(generator)
    assert [request.tokens for request in requests] == [TOKENS[40:60], TOKENS[6:26]]


def test_tokens_are_replayed_and_nothing_is_compiled_for_them(one: Generator) -> None:
    one.run(one.submit(TOKENS[:30], limit=30))
    kinds: list[str] = []
    with subscribe(lambda event: kinds.append(event.kind), ["kernel-compiled", "schedule"]):
        assert one.run(one.submit(TOKENS[:30], limit=100)) == TOKENS[30:130]
    assert kinds == []
    assert one._network._calls[1, 1].last_reason == ""  # type: ignore[attr-defined]


# ---------------------------------------------------------------- what is refused


def test_a_prompt_that_does_not_fit_is_told(one: Generator) -> None:
    with pytest.raises(GenerationError, match=f"{CONTEXT} tokens, and the context holds {CONTEXT}.*"):
        one.submit([1] * CONTEXT)
    for wrong in ([], [-1], [512]):
        with pytest.raises(GenerationError):
            one.submit(wrong)
    with pytest.raises(ConfigError, match="limit"):
        one.submit([1], limit=0)
    assert not one.step()


@pytest.mark.parametrize("settings", [{"slots": 0}, {"context": 0}, {"chunk": -1}, {"slots": 1.5}])
def test_settings_are_checked(model: Transformer, settings: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        Generator(model, **settings)
    with pytest.raises(GenerationError, match="made for 512"):
        Generator(model, context=513)


def test_logits_that_are_nan_end_one_request(four: Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    right = four.submit(TOKENS[:4], limit=10)
    wrong = four.submit(TOKENS[:6], limit=10)
    while not (right.tokens and wrong.tokens):
        four.step()

    def poisoned(scores: Scores, row: int) -> int:
        logits = Tensor(scores[row][None] * np.float32(np.nan))
        return Sampler.choose_from(wrong.sampler, Scores(logits, logits.argmax(-1), logits.max(-1)), 0)

    monkeypatch.setattr(wrong.sampler, "choose_from", poisoned)
    finish(four)
    assert right.tokens == TOKENS[4:14]
    assert wrong.finished == "error"
    with pytest.raises(GenerationError, match="NaN"):
        four.run(wrong)


def test_a_step_that_fails_ends_its_requests_and_leaves_the_rest(
    four: Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = four.submit(TOKENS[:4], limit=10)
    four.step()

    def fail(*arguments: object) -> None:
        raise MemoryError("no memory")

    with monkeypatch.context() as patched:
        patched.setattr(four._network, "run_one", fail)
        with pytest.raises(MemoryError):
            four.step()
    assert broken.finished == "error"
    whole = four.submit(TOKENS[:4], limit=10)
    assert four.run(whole) == TOKENS[4:14]


def test_a_waiting_request_can_be_cancelled(one: Generator) -> None:
    first, waiting = one.submit(TOKENS[:3], limit=5), one.submit(TOKENS[:4], limit=5)
    one.step()
    waiting.cancel()
    finish(one)
    assert (first.finished, waiting.finished, waiting.tokens) == ("length", "cancelled", [])
    first.cancel()
    assert first.finished == "length", "what is finished stays so"
    assert isinstance(first, Request)


@pytest.mark.slow
@pytest.mark.parametrize("device", ["OPENCL"])
def test_other_devices_give_the_stored_tokens(device: str) -> None:
    from tilewright import Device

    if Device.availability().get(device) is not None:
        pytest.skip(f"{device} is not here")
    with Context(DEVICE=device):
        generator = Generator(stories(device), slots=2, context=64, end_tokens=())
        requests = [generator.submit(TOKENS[:length], limit=12) for length in (12, 3)]
        finish(generator)
    assert [request.tokens for request in requests] == [TOKENS[12:24], TOKENS[3:15]]
