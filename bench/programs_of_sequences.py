"""Training programs of sequences, recurrent, convolutional and with states, for `bench/programs.py`. In: a library, its
`F`, what a program is given, and sizes. Out: the loss."""

from __future__ import annotations

from typing import Any

from bench.program_kit import Given, Library, program


@program(batch=(8, 2, 2), time=(1024, 512, 64), width=(1024, 256, 32), states=(16, 16, 8), layers=2)
def state_space(ops: Library, F: Any, given: Given, batch: int, time: int, width: int, states: int, layers: int) -> Any:
    """Selective state space in chunks: products within a chunk, and a state that is carried from one to the next."""
    chunk, heads = 64, 16
    chunks, features = time // chunk, width // heads
    x = given.values("sequence", batch, time, width)
    is_past = ops.tril(ops.ones(chunk, chunk)).reshape(1, 1, chunk, chunk, 1) > 0
    for layer in range(layers):
        entering = F.linear(x, given.parameter(f"enter{layer}", width, width))
        step = F.softplus(ops.widen(F.linear(x, given.parameter(f"step{layer}", heads, width))))
        written = F.linear(x, given.parameter(f"write{layer}", states, width)).reshape(batch, chunks, chunk, states)
        read = F.linear(x, given.parameter(f"read{layer}", states, width)).reshape(batch, chunks, chunk, states)
        rate = -ops.exp(ops.widen(given.parameter(f"rate{layer}", heads)))
        # The logarithm of the decay since the chunk began.
        decay = ops.cumsum((step * rate).reshape(batch, chunks, chunk, heads), 2)
        between = decay.unsqueeze(3) - decay.unsqueeze(2)
        between = ops.where(is_past, ops.exp(ops.where(is_past, between, between * 0)), between * 0)
        values = entering.reshape(batch, time, heads, features) * step.unsqueeze(-1)
        values = values.reshape(batch, chunks, chunk, heads, features).to(x.dtype)
        scores = ops.einsum("bcin,bcjn->bcij", read, written).unsqueeze(-1) * between
        y = ops.einsum("bcijh,bcjhd->bcihd", scores.to(x.dtype), values)
        left = ops.exp(decay[:, :, -1:] - decay).unsqueeze(-1).to(x.dtype)
        added = ops.einsum("bcjn,bcjhd->bchnd", written, values * left)
        carried, before = added[:, 0] * 0, []
        for at in range(chunks):
            before.append(carried)
            carried = carried * ops.exp(decay[:, at, -1]).reshape(batch, heads, 1, 1).to(x.dtype) + added[:, at]
        from_before = ops.einsum("bcin,bchnd->bcihd", read, ops.stack(before, 1))
        y = y + from_before * ops.exp(decay).unsqueeze(-1).to(x.dtype)
        y = y.reshape(batch, time, width) * F.silu(entering)
        x = x + F.linear(y, given.parameter(f"leave{layer}", width, width))
    return (ops.widen(x) ** 2).mean()


@program(batch=(64, 8, 4), time=(512, 400, 60), width=(512, 128, 32), tokens=(64, 40, 20), length=(64, 30, 10))
def speech_ctc(ops: Library, F: Any, given: Given, batch: int, time: int, width: int, tokens: int, length: int) -> Any:
    """Speech to tokens: convolutions over frames and a CTC loss."""
    features = 80
    x = given.values("frames", batch, time, features).transpose(1, 2)
    x = F.relu(F.conv1d(x, given.parameter("first", width, features, 5), stride=2, padding=2))
    x = F.relu(F.conv1d(x, given.parameter("second", width, width, 5), padding=2)).transpose(1, 2)
    logits = ops.widen(F.linear(x, given.parameter("head", tokens, width)))
    chances = F.log_softmax(logits, -1).transpose(0, 1)
    frames, lengths = ops.full((batch,), chances.shape[0]), ops.full((batch,), length)
    return F.ctc_loss(chances, given.integers("targets", tokens - 1, batch, length) + 1, frames, lengths)


@program(batch=(256, 32, 8), time=(128, 32, 12), width=(512, 256, 32))
def gru_by_steps(ops: Library, F: Any, given: Given, batch: int, time: int, width: int) -> Any:
    """GRU written out step by step."""
    x = given.values("sequence", batch, time, width)
    entering = F.linear(x, given.parameter("enter", 3 * width, width), given.parameter("enter_bias", 3 * width))
    state, states = x[:, 0] * 0, []
    for at in range(time):
        carried = F.linear(state, given.parameter("carry", 3 * width, width), given.parameter("carry_bias", 3 * width))
        reset_in, update_in, new_in = ops.split(entering[:, at], width, 1)
        reset_carried, update_carried, new_carried = ops.split(carried, width, 1)
        reset, update = ops.sigmoid(reset_in + reset_carried), ops.sigmoid(update_in + update_carried)
        new = ops.tanh(new_in + reset * new_carried)
        state = (1 - update) * new + update * state
        states.append(state)
    return (ops.widen(ops.stack(states, 1)) ** 2).mean()


@program(batch=(8, 2, 2), time=(4096, 128, 16), width=(1024, 64, 16))
def min_gru(ops: Library, F: Any, given: Given, batch: int, time: int, width: int) -> Any:
    """minGRU: a linear recurrence by cumulative sums of logarithms."""
    x = given.values("sequence", batch, time, width)
    gate = ops.widen(F.linear(x, given.parameter("gate", width, width)))
    new = ops.widen(F.linear(x, given.parameter("new", width, width)))
    log_update, log_keep = -F.softplus(-gate), -F.softplus(gate)
    log_new = ops.where(new >= 0, ops.log(F.relu(new) + 0.5), -F.softplus(-new))
    kept = ops.cumsum(log_keep, 1)
    states = ops.exp(kept + ops.logcumsumexp(log_new + log_update - kept, 1))
    return (ops.widen(F.linear(states.to(x.dtype), given.parameter("head", width, width))) ** 2).mean()


@program(batch=(128, 8, 4), time=(256, 256, 16), width=(512, 64, 32))
def tcn(ops: Library, F: Any, given: Given, batch: int, time: int, width: int) -> Any:
    """TCN: causal convolutions of growing dilation."""
    x = given.values("sequence", batch, width, time)
    for layer in range(4):
        dilation = 2**layer
        weight, bias = given.parameter(f"weight{layer}", width, width, 3), given.parameter(f"bias{layer}", width)
        y = F.conv1d(F.pad(x, (2 * dilation, 0)), weight, bias, dilation=dilation)
        x = F.relu(x + F.dropout(F.relu(y), 0.0))
    return (ops.widen(x[:, :, -1]) ** 2).mean()


@program(batch=(32, 1, 1), time=(1024, 512, 32), width=(512, 128, 16))
def long_convolutions(ops: Library, F: Any, given: Given, batch: int, time: int, width: int) -> Any:
    """Hyena: long depthwise convolutions between gates."""
    x = given.values("sequence", batch, time, width)
    parts = F.linear(x, given.parameter("enter", 3 * width, width)).transpose(1, 2)
    parts = F.conv1d(F.pad(parts, (2, 0)), given.parameter("short", 3 * width, 1, 3), groups=3 * width)
    values, before, after = parts.chunk(3, 1)
    taps = min(128, time)
    kernel = given.parameter("long", width, 1, taps) * 0.1
    y = F.conv1d(F.pad(values * before, (taps - 1, 0)), kernel, groups=width) * after
    return (ops.widen(F.linear(y.transpose(1, 2), given.parameter("leave", width, width))) ** 2).mean()


@program(batch=(64, 2, 2), time=(512, 64, 16), width=(256, 64, 16))
def gated_convolutions(ops: Library, F: Any, given: Given, batch: int, time: int, width: int) -> Any:
    """Gated convolutional language model with tied weights and label smoothing."""
    vocabulary = 4000
    table = given.parameter("tokens", vocabulary, width)
    x = F.embedding(given.integers("sequence", vocabulary, batch, time), table).transpose(1, 2)
    for layer in range(2):
        weight, bias = (
            given.parameter(f"weight{layer}", 2 * width, width, 4),
            given.parameter(f"bias{layer}", 2 * width),
        )
        values, gate = F.conv1d(F.pad(x, (3, 0)), weight, bias).chunk(2, 1)
        x = x + values * ops.sigmoid(gate)
    logits = ops.widen(F.linear(x.transpose(1, 2).reshape(batch * time, width), table))
    return F.cross_entropy(logits, given.integers("next", vocabulary, batch * time), label_smoothing=0.1)


@program(batch=(64, 16, 4), time=(256, 24, 10), width=(256, 64, 16), labels=(9, 9, 5))
def crf(ops: Library, F: Any, given: Given, batch: int, time: int, width: int, labels: int) -> Any:
    """Conditional random field of a chain: its partition sum step by step, less the score of the true labels."""
    x = given.values("sequence", batch, time, width)
    emitted = ops.widen(F.linear(x, given.parameter("emit", labels, width)))
    moves = ops.widen(given.parameter("moves", labels, labels))
    total = emitted[:, 0]
    for at in range(1, time):
        total = ops.logsumexp(total.unsqueeze(2) + moves.unsqueeze(0), 1) + emitted[:, at]
    target = given.integers("labels", labels, batch, time)
    score = ops.gather(emitted, 2, target.unsqueeze(-1)).squeeze(-1).sum(1)
    moved = moves[target[:, :-1].reshape(-1), target[:, 1:].reshape(-1)].reshape(batch, time - 1)
    return (ops.logsumexp(total, 1) - (score + moved.sum(1))).mean()
