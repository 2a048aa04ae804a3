"""A mixture of experts. In: hidden states. Out: for each token the weighted sum of the experts that a router chooses
for it, plus that of experts that all tokens share. Of the weights only those of chosen experts are read."""

from __future__ import annotations

import math

from tilewright.base.dtype import dtypes
from tilewright.llm.network.choices import largest
from tilewright.llm.network.config import Config, Experts
from tilewright.llm.network.layers import FeedForward, Linear, gated_experts, mixed_experts
from tilewright.llm.network.weights import Weights
from tilewright.tensor.tensor import Tensor


class MixtureOfExperts:
    """Experts of a feed-forward layer's form, (experts, rows, columns) each, and a router."""

    def __init__(self, config: Config, weights: Weights, layer: int) -> None:
        assert config.experts is not None
        self.experts = experts = config.experts
        self.activation = config.activation
        hidden = config.hidden_size
        prefix = f"blk.{layer}"
        self.router = Linear(weights.matrix(f"{prefix}.ffn_gate_inp.weight", experts.count, hidden))
        self.choice_bias = weights.optional_vector(f"{prefix}.exp_probs_b.bias", experts.count)
        up_shape, down_shape = (experts.count, experts.size, hidden), (experts.count, hidden, experts.size)
        self.gate = weights.matrix(f"{prefix}.ffn_gate_exps.weight", *up_shape)
        self.up = weights.matrix(f"{prefix}.ffn_up_exps.weight", *up_shape)
        self.down = weights.matrix(f"{prefix}.ffn_down_exps.weight", *down_shape)
        self.shared = None
        if experts.shared_size:
            self.shared = FeedForward(weights, prefix, "_shexp", hidden, experts.shared_size, config.activation)

    def __call__(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, 1)
        logits = self.router(tokens.cast(dtypes.float32))
        chosen, scores = pick_experts(self.experts, logits, self.choice_bias)
        inner = gated_experts(self.gate, self.up, tokens.unsqueeze(1), chosen, self.activation)
        mixed = mixed_experts(self.down, inner, chosen, scores, self.experts.renormalise)
        if self.experts.scale != 1.0:
            mixed = mixed * self.experts.scale
        mixed = mixed.reshape(x.shape)
        return mixed if self.shared is None else mixed + self.shared(x)


def pick_experts(experts: Experts, logits: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """The chosen experts of each token, int32 (tokens, k), and the score of each."""
    scores = logits.sigmoid() if experts.scoring == "sigmoid" else logits.softmax(-1)
    preference = scores if bias is None else scores + bias.cast(scores.dtype)
    if experts.groups > 1:
        preference = _within_best_groups(experts, preference)
    return largest(preference, scores, experts.chosen)


def _within_best_groups(experts: Experts, preference: Tensor) -> Tensor:
    """Minus infinity for the experts of groups that are not among the best."""
    grouped = preference.unflatten(-1, (experts.groups, -1))
    values = grouped.topk(experts.group_best).values.sum(-1)
    best = values.topk(experts.group_chosen).indices
    numbers = Tensor.arange(experts.groups, dtype=best.dtype, device=preference.device)
    is_best = (best.unsqueeze(-1) == numbers).any(-2)
    return is_best.unsqueeze(-1).where(grouped, -math.inf).flatten(-2)
