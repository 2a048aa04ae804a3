"""Language models with random weights on a card: `CACHE=0 python -m bench.llm_gpu [mixture] [dense]`. Out:

  mixture  a GLM-shaped mixture of experts, Q4_0: tokens a second of one chain of tokens, each of which is computed from
           the one before, and the bytes of the weights that a token reads a second, as a share of --bandwidth
  dense    a LLaMA-shaped 8B model in bfloat16: the same, and the operations a second of a prompt of 2048 tokens, as a
           share of --peak

`--kernels N` lists the N kernels of a token that take the longest. `--tiny` is the same program at sizes that any
device runs."""

from __future__ import annotations

import argparse
import math
import time
from dataclasses import replace
from typing import Any

from bench.slowest import slowest_kernels
from tilewright import Tensor, dtypes, jit
from tilewright.llm.network.config import Config, Experts, Rope
from tilewright.llm.network.model import Transformer
from tilewright.llm.network.weights import Weights
from tilewright.llm.quantised.types import TYPES
from tilewright.llm.quantised.weight import QuantisedWeight
from tilewright.runtime.device import synchronize

MIXTURE = Config(
    "glm4moe",
    vocab_size=151552,
    hidden_size=2048,
    layer_count=47,
    head_count=20,
    kv_head_count=4,
    head_size=128,
    ffn_size=10240,
    context_length=4096,
    rope=Rope(1e6, 64),
    experts=Experts(64, 4, 1536, first=1, shared_size=1536, scoring="sigmoid"),
)
DENSE = Config(
    "llama",
    vocab_size=128256,
    hidden_size=4096,
    layer_count=32,
    head_count=32,
    kv_head_count=8,
    head_size=128,
    ffn_size=14336,
    context_length=4096,
    rope=Rope(5e5, 128),
)
TINY: dict[str, Any] = {"vocab_size": 512, "hidden_size": 256, "layer_count": 2, "ffn_size": 512}
TINY |= {"head_size": 64, "rope": Rope(1e4, 64)}
CACHE_LENGTH = 1024


class RandomWeights(Weights):
    """Weights of whatever shape the network asks for. Each has memory of its own; matrices of one shape have the same
    values, which are drawn once."""

    def __init__(self, kind: str, device: str) -> None:
        super().__init__({}, "random weights")
        self.kind = kind
        self.target = device
        self.drawn: dict[tuple[int, ...], Tensor] = {}
        self.nbytes: dict[str, int] = {}

    def has(self, name: str) -> bool:
        return name.endswith(".weight") and "shexp" in name

    def matrix(self, name: str, *shape: int) -> Any:
        if "ffn_gate_inp" in name:
            return (Tensor.randn(*shape, device=self.target) / math.sqrt(shape[-1])).realize()
        if shape not in self.drawn:
            self.drawn[shape] = self._draw(shape)
        drawn = self.drawn[shape]
        # Memory of its own: a clone lies in that of the original until one of the two is written.
        held = Tensor.empty(*drawn.shape, dtype=drawn.dtype, device=self.target).assign(drawn).realize()
        self.nbytes[name] = held.nbytes()
        return held if self.kind == "BF16" else QuantisedWeight(self.kind, shape, held)

    def _draw(self, shape: tuple[int, ...]) -> Tensor:
        if self.kind == "BF16":
            return (Tensor.randn(*shape, device=self.target) / math.sqrt(shape[-1])).cast(dtypes.bfloat16).realize()
        form = TYPES[self.kind]
        blocks = (*shape[:-1], shape[-1] // form.size)
        fields = Tensor.randint(*blocks, form.nbytes - 2, high=256, device=self.target).cast(dtypes.uint8)
        scale = Tensor.full((*blocks, 1), 0.2 / math.sqrt(shape[-1]), dtype=dtypes.float16, device=self.target)
        return scale.contiguous().bitcast(dtypes.uint8).cat(fields, dim=-1).flatten(-2).realize()

    def vector(self, name: str, size: int) -> Tensor:
        return Tensor.ones(size, device=self.target).contiguous().realize()

    def read_bytes(self, experts: Experts | None) -> int:
        """Of one token: of experts those that are chosen, of the embedding next to nothing."""
        total = 0
        for name, nbytes in self.nbytes.items():
            is_expert = experts is not None and "_exps" in name
            total += nbytes * experts.chosen // experts.count if is_expert and experts else nbytes
        return total - self.nbytes.get("token_embd.weight", 0)


def step(model: Transformer, cache: Any, tokens: Tensor, position: Any) -> Tensor:
    return model.head(model.hidden(tokens, cache, position)[:, -1:]).argmax(-1).cast(dtypes.int32).realize()


def decode(model: Transformer, weights: RandomWeights, device: str, count: int, bandwidth: float, slowest: int) -> None:
    cache = model.make_cache(1, CACHE_LENGTH)
    run = jit(step, symbolic={"position": (0, CACHE_LENGTH - 1)})
    token = Tensor([[1]], dtype=dtypes.int32, device=device).realize()
    warm = 5
    for position in range(warm + count):
        if position == warm:
            synchronize(device)
            start = time.perf_counter()
        token = run(model, cache, token, position)
    token.numpy()
    seconds = (time.perf_counter() - start) / count
    read = weights.read_bytes(model.config.experts)
    print(
        f"  decode: {1 / seconds:.1f} tokens/s, {read / 1e9:.2f} GB of weights a token, "
        f"{read / seconds / bandwidth:.2f} of {bandwidth / 1e12:.1f} TB/s",
        flush=True,
    )
    if slowest:
        print("\n".join(slowest_kernels(lambda: run(model, cache, token, warm + count).numpy(), slowest)), flush=True)


def prefill(model: Transformer, device: str, length: int, peak: float) -> None:
    cache = model.make_cache(1, length)
    run = jit(lambda model, cache, tokens: step(model, cache, tokens, 0))
    tokens = (Tensor.arange(length, dtype=dtypes.int32, device=device) % 500).reshape(1, -1).realize()
    best = float("inf")
    for _ in range(6):
        start = time.perf_counter()
        run(model, cache, tokens).numpy()
        best = min(best, time.perf_counter() - start)
    config = model.config
    attention = config.hidden_size * config.head_size * (2 * config.head_count + 2 * config.kv_head_count)
    parameters = config.layer_count * (attention + 3 * config.hidden_size * config.ffn_size)
    scores = config.layer_count * 2 * length * length * config.head_count * config.head_size  # causal: half of 4
    operations = 2 * parameters * length + scores
    print(
        f"  prefill {length}: {length / best:.0f} tokens/s, {operations / best / 1e12:.1f} TFLOP/s, "
        f"{operations / best / peak:.2f} of {peak / 1e12:.0f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="language models with random weights")
    parser.add_argument("parts", nargs="*", default=["mixture", "dense"])
    parser.add_argument("--device", default="CUDA")
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--kernels", type=int, default=0, help="list this many of the slowest kernels of a token")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--bandwidth", type=float, default=4.3e12)
    parser.add_argument("--peak", type=float, default=989e12)
    given = parser.parse_args()
    for part in given.parts or ["mixture", "dense"]:
        config, kind = (MIXTURE, "Q4_0") if part == "mixture" else (DENSE, "BF16")
        if given.tiny:
            experts = config.experts and replace(config.experts, size=128, shared_size=128, count=8)
            config = replace(config, **TINY, experts=experts)
        weights = RandomWeights(kind, given.device)
        model = Transformer(config, weights, dtypes.float16 if part == "mixture" else dtypes.bfloat16)
        print(f"{part}: {sum(weights.nbytes.values()) / 1e9:.2f} GB of {kind} on {given.device}", flush=True)
        decode(model, weights, given.device, 8 if given.tiny else given.tokens, given.bandwidth, given.kernels)
        if part == "dense":
            prefill(model, given.device, 64 if given.tiny else 2048, given.peak)


if __name__ == "__main__":
    main()
