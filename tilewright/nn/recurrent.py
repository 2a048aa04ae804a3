"""Recurrent layers. In: a sequence (steps, batch, features), or (batch, steps, features) with `batch_first`, or one
without a batch; and an initial state. Out: the hidden state of every step, and the last one. Names of weights, order of
gates and arguments are torch's. The product with the input is computed for all steps at once, that with the hidden
state in the loop; every step launches the same kernels."""

from __future__ import annotations

import math
from typing import Any

from tilewright.base.errors import ShapeError
from tilewright.nn.layers import check_sizes, in_dtype_of, optional_in_dtype_of, uniform_parameter
from tilewright.tensor.core.graph_memo import remembering
from tilewright.tensor.tensor import Tensor

__all__: list[str] = ["GRU", "LSTM", "RNN", "GRUCell", "LSTMCell", "RNNCell"]

State = tuple[Tensor, ...]  # (hidden,), or (hidden, cell)


# ---------------------------------------------------------------- one step


@remembering
def lstm_step(entering: Tensor, recurrent: Tensor, state: State) -> State:
    enter, forget, candidate, leave = (entering + recurrent).chunk(4, dim=-1)
    cell = forget.sigmoid() * state[1] + enter.sigmoid() * candidate.tanh()
    return leave.sigmoid() * cell.tanh(), cell


@remembering
def gru_step(entering: Tensor, recurrent: Tensor, state: State) -> State:
    reset, update, new = entering.chunk(3, dim=-1)
    own_reset, own_update, own_new = recurrent.chunk(3, dim=-1)
    kept = (update + own_update).sigmoid()
    candidate = (new + (reset + own_reset).sigmoid() * own_new).tanh()
    return ((1 - kept) * candidate + kept * state[0],)


def tanh_step(entering: Tensor, recurrent: Tensor, state: State) -> State:
    del state
    return ((entering + recurrent).tanh(),)


def relu_step(entering: Tensor, recurrent: Tensor, state: State) -> State:
    del state
    return ((entering + recurrent).relu(),)


class _Cell:
    """One step of a recurrent layer, with its weights."""

    gates = 1

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True) -> None:
        check_sizes(type(self).__name__, input_size=input_size, hidden_size=hidden_size)
        bound = 1 / math.sqrt(hidden_size)
        rows = self.gates * hidden_size
        self.hidden_size = hidden_size
        self.weight_ih = uniform_parameter(bound, rows, input_size)
        self.weight_hh = uniform_parameter(bound, rows, hidden_size)
        self.bias_ih = uniform_parameter(bound, rows) if bias else None
        self.bias_hh = uniform_parameter(bound, rows) if bias else None

    def _products(self, x: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        entering = x.linear(in_dtype_of(x, self.weight_ih).transpose(), optional_in_dtype_of(x, self.bias_ih))
        recurrent = hidden.linear(in_dtype_of(x, self.weight_hh).transpose(), optional_in_dtype_of(x, self.bias_hh))
        return entering, recurrent

    def _start(self, x: Tensor) -> Tensor:
        return Tensor.zeros(*x.shape[:-1], self.hidden_size, dtype=x.dtype, device=x.device)


class LSTMCell(_Cell):
    """One step of a long short-term memory: (x, (h, c)) gives the next (h, c); both start at 0."""

    gates = 4

    def __call__(self, x: Tensor, hc: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        hidden, cell = (self._start(x), self._start(x)) if hc is None else hc
        found = lstm_step(*self._products(x, hidden), (hidden, cell))
        return found[0], found[1]


class GRUCell(_Cell):
    """One step of a gated recurrent unit: (x, h) gives the next h, which starts at 0."""

    gates = 3

    def __call__(self, x: Tensor, h: Tensor | None = None) -> Tensor:
        hidden = self._start(x) if h is None else h
        return gru_step(*self._products(x, hidden), (hidden,))[0]


class RNNCell(_Cell):
    """One step of a plain recurrent layer: (x, h) gives the next h, which starts at 0."""

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True, nonlinearity: str = "tanh") -> None:
        super().__init__(input_size, hidden_size, bias)
        self.step = _plain_step("RNNCell", nonlinearity)

    def __call__(self, x: Tensor, h: Tensor | None = None) -> Tensor:
        hidden = self._start(x) if h is None else h
        found: State = self.step(*self._products(x, hidden), (hidden,))
        return found[0]


def _plain_step(layer: str, nonlinearity: str) -> Any:
    steps = {"tanh": tanh_step, "relu": relu_step}
    if nonlinearity not in steps:
        raise ShapeError(layer, f"nonlinearity={nonlinearity!r}", "give 'tanh' or 'relu'")
    return steps[nonlinearity]


# ---------------------------------------------------------------- a sequence


class _Recurrent:
    """Stacked layers over a sequence, each in one direction or in both."""

    gates = 1
    states = 1  # values carried from step to step

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
    ) -> None:
        check_sizes(type(self).__name__, input_size=input_size, hidden_size=hidden_size, num_layers=num_layers)
        if not 0 <= dropout <= 1:
            raise ShapeError(type(self).__name__, f"dropout={dropout} is not a probability", "give a number in 0..1")
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.num_layers = num_layers
        self.bias = bias
        self.batch_first = batch_first
        self.dropout = dropout
        self.bidirectional = bidirectional
        bound = 1 / math.sqrt(hidden_size)
        rows = self.gates * hidden_size
        for layer in range(num_layers):
            width = input_size if layer == 0 else hidden_size * self._directions
            for suffix in self._suffixes:
                setattr(self, f"weight_ih_l{layer}{suffix}", uniform_parameter(bound, rows, width))
                setattr(self, f"weight_hh_l{layer}{suffix}", uniform_parameter(bound, rows, hidden_size))
                if bias:
                    setattr(self, f"bias_ih_l{layer}{suffix}", uniform_parameter(bound, rows))
                    setattr(self, f"bias_hh_l{layer}{suffix}", uniform_parameter(bound, rows))

    @property
    def _suffixes(self) -> tuple[str, ...]:
        return ("", "_reverse") if self.bidirectional else ("",)

    @property
    def _directions(self) -> int:
        return len(self._suffixes)

    def _step(self, entering: Tensor, recurrent: Tensor, state: State) -> State:
        raise NotImplementedError

    def _run(self, x: Tensor, start: State | None) -> tuple[Tensor, State]:
        name = type(self).__name__
        if x.ndim not in (2, 3) or x.shape[-1] != self.input_size:
            message = f"a sequence of shape {x.shape} for {self.input_size} features"
            raise ShapeError(name, message, "give (steps, batch, features), or (batch, steps, ...) with batch_first")
        is_batched = x.ndim == 3
        sequence = x if is_batched else x.unsqueeze(1)
        if is_batched and self.batch_first:
            sequence = sequence.transpose(0, 1)
        state = self._start_state(sequence, start, is_batched)
        ends: list[State] = []
        for layer in range(self.num_layers):
            outputs = []
            for direction, suffix in enumerate(self._suffixes):
                first = tuple(value[layer * self._directions + direction] for value in state)
                output, end = self._pass(sequence, layer, suffix, first)
                outputs.append(output)
                ends.append(end)
            sequence = outputs[0].cat(*outputs[1:], dim=-1) if len(outputs) > 1 else outputs[0]
            if layer < self.num_layers - 1:
                sequence = sequence.dropout(self.dropout)
        last = tuple(values[0].stack(*values[1:]) for values in zip(*ends))
        if is_batched:
            return sequence.transpose(0, 1) if self.batch_first else sequence, last
        return sequence.squeeze(1), tuple(value.squeeze(1) for value in last)

    def _start_state(self, sequence: Tensor, start: State | None, is_batched: bool) -> State:
        wanted = (self.num_layers * self._directions, sequence.shape[1], self.hidden_size)
        if start is None:
            return (Tensor.zeros(*wanted, dtype=sequence.dtype, device=sequence.device),) * self.states
        given = start if is_batched else tuple(value.unsqueeze(1) for value in start)
        for value in given:
            if value.shape != wanted:
                message = f"an initial state of shape {value.shape}"
                raise ShapeError(type(self).__name__, message, f"give (layers * directions, batch, hidden): {wanted}")
        return given

    def _pass(self, sequence: Tensor, layer: int, suffix: str, state: State) -> tuple[Tensor, State]:
        """One layer in one direction: the hidden state after each step, in the order of the sequence."""
        weight, recurrent_weight, bias, recurrent_bias = (
            getattr(self, f"{name}_l{layer}{suffix}", None) for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        )
        entering = sequence.linear(
            in_dtype_of(sequence, weight).transpose(),  # type: ignore[arg-type]
            optional_in_dtype_of(sequence, bias),
        ).contiguous()
        transposed = in_dtype_of(sequence, recurrent_weight).transpose()  # type: ignore[arg-type]
        own_bias = optional_in_dtype_of(sequence, recurrent_bias)
        steps = range(sequence.shape[0])
        hidden = []
        for step in reversed(steps) if suffix else steps:
            state = self._step(entering[step], state[0].linear(transposed, own_bias), state)
            hidden.append(state[0])
        ordered = hidden[::-1] if suffix else hidden
        return ordered[0].stack(*ordered[1:]), state


class LSTM(_Recurrent):
    """A long short-term memory: `output, (h, c) = lstm(x, (h0, c0))`; h and c have the shape (layers * directions,
    batch, hidden) and start at 0."""

    gates = 4
    states = 2

    def _step(self, entering: Tensor, recurrent: Tensor, state: State) -> State:
        return lstm_step(entering, recurrent, state)

    def __call__(self, x: Tensor, hc: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        output, last = self._run(x, hc)
        return output, (last[0], last[1])


class _OneState(_Recurrent):
    def __call__(self, x: Tensor, h: Tensor | None = None) -> tuple[Tensor, Tensor]:
        output, last = self._run(x, None if h is None else (h,))
        return output, last[0]


class GRU(_OneState):
    """A gated recurrent unit: `output, h = gru(x, h0)`."""

    gates = 3

    def _step(self, entering: Tensor, recurrent: Tensor, state: State) -> State:
        return gru_step(entering, recurrent, state)


class RNN(_OneState):
    """A plain recurrent layer, with tanh or relu: `output, h = rnn(x, h0)`."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
    ) -> None:
        super().__init__(input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional)
        self.nonlinearity = nonlinearity
        self.step = _plain_step("RNN", nonlinearity)

    def _step(self, entering: Tensor, recurrent: Tensor, state: State) -> State:
        found: State = self.step(entering, recurrent, state)
        return found
