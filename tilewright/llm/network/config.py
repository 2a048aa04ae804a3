"""The configuration of a language model. In: the numbers that a file states. Out: one record that the network is built
from. Families differ in these values only; `check` refuses values that no network can have."""

from __future__ import annotations

import math

from tilewright.base.errors import ConfigError
from tilewright.base.records import field, field_names, record

# Larger numbers mean a damaged file: limits of sizes, and of what a file may ask to be repeated.
MAX_SIZE = 1 << 24
MAX_LAYERS = 1 << 12
MAX_HEAD_SIZE = 1 << 14
MAX_ROPE_BASE = 1e15


@record
class Rope:
    """Rotary position embedding of the first `size` features of a head. Feature i is rotated with the next one
    (`interleaved`), or with the one size / 2 further. `factors` divide the frequencies, one each, for contexts
    longer than the model was trained on; `magnitude` scales the result (YaRN)."""

    base: float
    size: int
    interleaved: bool = False
    factors: tuple[float, ...] = ()
    magnitude: float = 1.0

    def frequencies(self) -> list[float]:
        """Radians per position of each pair."""
        pairs = self.size // 2
        factors = self.factors or (1.0,) * pairs
        return [self.base ** (-2 * pair / self.size) / factors[pair] for pair in range(pairs)]


@record
class Experts:
    """A mixture of experts in place of the feed-forward layer, from layer `first` on. The router scores the experts by
    `scoring`, "softmax" or "sigmoid"; a bias may be added for the choice alone. With `groups` the experts of the best
    `group_chosen` groups can be chosen, a group's score being the sum of its `group_best` best experts."""

    count: int
    chosen: int
    size: int
    first: int = 0
    shared_size: int = 0
    scoring: str = "softmax"
    renormalise: bool = True
    scale: float = 1.0
    groups: int = 1
    group_chosen: int = 1
    group_best: int = 1


@record
class Latent:
    """Latent attention: keys and values of all heads are products of one vector of `kv_rank` features a token, beside
    `rope_size` rotated features that all heads share. Without `q_rank` queries are made directly."""

    kv_rank: int
    q_rank: int
    plain_size: int
    rope_size: int
    value_size: int


@record
class Config:
    """A decoder of the llama family. `window` is the reach of layers whose `is_local` is true; `norm_shift` is added to
    the weights of norms; `attention_scale` 0 stands for 1 / sqrt(head_size)."""

    architecture: str
    vocab_size: int
    hidden_size: int
    layer_count: int
    head_count: int
    kv_head_count: int
    head_size: int
    ffn_size: int
    context_length: int
    rope: Rope
    norm_eps: float = 1e-5
    activation: str = "silu"
    is_tied: bool = False
    has_qk_norm: bool = False
    has_post_norms: bool = False
    norm_shift: float = 0.0
    embedding_scale: float = 1.0
    attention_scale: float = 0.0
    window: int = 0
    is_local: tuple[bool, ...] = ()
    local_rope: Rope | None = None
    experts: Experts | None = None
    latent: Latent | None = None
    end_tokens: tuple[int, ...] = field(default_factory=tuple, compare=False)

    def __post_init__(self) -> None:
        check(self)

    def is_local_layer(self, layer: int) -> bool:
        return bool(self.window and self.is_local and self.is_local[layer])

    def rope_of(self, layer: int) -> Rope:
        return self.local_rope if self.local_rope is not None and self.is_local_layer(layer) else self.rope

    def has_experts(self, layer: int) -> bool:
        return self.experts is not None and layer >= self.experts.first


# ---------------------------------------------------------------- legality


def check(config: Config) -> None:
    """Refuses what no network can have, before memory is asked for."""
    _check_counts("the model", config, ("kv_head_count", "head_count", "head_size", "vocab_size", "hidden_size"))
    _check_counts("the model", config, ("ffn_size", "context_length", "layer_count"))
    if config.layer_count > MAX_LAYERS:
        raise _refused(f"{config.layer_count} layers")
    if config.head_size > MAX_HEAD_SIZE:
        raise _refused(f"heads of {config.head_size} features")
    if config.head_count % config.kv_head_count:
        raise _refused(f"{config.head_count} heads over {config.kv_head_count} key-value heads")
    if config.window < 0:
        raise _refused(f"a window of {config.window} tokens")
    if config.window and len(config.is_local) != config.layer_count:
        raise _refused(f"{len(config.is_local)} kinds of attention for {config.layer_count} layers")
    for name in ("norm_eps", "norm_shift", "embedding_scale", "attention_scale"):
        if not math.isfinite(getattr(config, name)):
            raise _refused(f"{name}={getattr(config, name)}")
    if config.activation not in ("silu", "gelu"):
        raise _refused(f"the activation {config.activation!r}")
    for rope in (config.rope, config.local_rope):
        if rope is not None:
            _check_rope(rope, config.latent.rope_size if config.latent else config.head_size)
    if config.experts is not None:
        _check_experts(config.experts)
    if config.latent is not None:
        _check_counts("latent attention", config.latent, ("kv_rank", "plain_size", "rope_size", "value_size"))


def _check_rope(rope: Rope, head_size: int) -> None:
    if rope.size % 2 or not 0 < rope.size <= head_size:
        raise _refused(f"{rope.size} rotated features in a head of {head_size}")
    if not (1 <= rope.base <= MAX_ROPE_BASE and math.isfinite(rope.magnitude)):
        raise _refused(f"a rotary base of {rope.base}")
    if rope.factors and (len(rope.factors) != rope.size // 2 or not all(0 < f < math.inf for f in rope.factors)):
        raise _refused(f"{len(rope.factors)} rotary factors for {rope.size // 2} pairs, or one that is not positive")


def _check_experts(experts: Experts) -> None:
    _check_counts("the experts", experts, ("count", "chosen", "size", "groups", "group_chosen", "group_best"))
    if experts.chosen > experts.count or experts.count % experts.groups or experts.group_chosen > experts.groups:
        raise _refused(
            f"{experts.chosen} of {experts.count} experts, {experts.group_chosen} of {experts.groups} groups"
        )
    if experts.group_best > experts.count // experts.groups:
        raise _refused(f"the {experts.group_best} best of {experts.count // experts.groups} experts of a group")
    if experts.chosen > experts.count // experts.groups * experts.group_chosen:
        raise _refused(f"{experts.chosen} experts of {experts.group_chosen} groups")
    if experts.scoring not in ("softmax", "sigmoid"):
        raise _refused(f"experts scored by {experts.scoring!r}")
    if not math.isfinite(experts.scale) or not 0 <= experts.shared_size <= MAX_SIZE or experts.first < 0:
        raise _refused("experts with numbers out of range")


def _check_counts(owner: str, made: object, names: tuple[str, ...]) -> None:
    known = field_names(made)
    for name in names:
        value = getattr(made, name)
        if name not in known or type(value) is not int or not 1 <= value <= MAX_SIZE:
            raise _refused(f"{owner} with {name}={value!r}")


def _refused(what: str) -> ConfigError:
    return ConfigError("Config", f"no network has {what}", "take another file, or fix what it says of its model")
