"""Training programs of graphs, points, pairs, tables and samples, for `bench/programs.py`. In: a library, its `F`, what
a program is given, and sizes. Out: the loss."""

from __future__ import annotations

from typing import Any

from bench.program_kit import Given, Library, program


def dense(F: Any, given: Given, x: Any, name: str, leaving: int) -> Any:
    """A linear layer with a bias."""
    weight = given.parameter(f"{name}.weight", leaving, x.shape[-1])
    return F.linear(x, weight, given.parameter(f"{name}.bias", leaving))


def squared_distances(ops: Library, x: Any, y: Any) -> Any:
    """Of each row of x to each row of y, by one product."""
    products = ops.widen(x @ y.T)
    return (ops.widen(x) ** 2).sum(1, keepdim=True) - 2 * products + (ops.widen(y) ** 2).sum(1)


@program(nodes=(100000, 10000, 1000), edges=(800000, 80000, 6000), width=(64, 32, 16), heads=(4, 4, 2))
def graph_attention(ops: Library, F: Any, given: Given, nodes: int, edges: int, width: int, heads: int) -> Any:
    """Graph attention: a softmax over the edges that enter a node."""
    x = given.values("nodes", nodes, width)
    source, target = given.integers("sources", nodes, edges), given.integers("targets", nodes, edges)
    for layer in range(2):
        values = F.linear(x, given.parameter(f"weight{layer}", heads * width, x.shape[1])).reshape(nodes, heads, width)
        of_source = (values * given.parameter(f"source{layer}", heads, width)).sum(-1)
        of_target = (values * given.parameter(f"target{layer}", heads, width)).sum(-1)
        scores = ops.widen(F.leaky_relu(of_source[source] + of_target[target], 0.2))
        scores = ops.exp(scores.clamp(max=10))
        total = ops.zeros(nodes, heads, dtype=scores.dtype).index_add(0, target, scores)
        shares = (scores / (total[target] + 1e-9)).to(x.dtype)
        sums = ops.zeros(nodes, heads, width, dtype=x.dtype)
        sums = sums.index_add(0, target, values[source] * shares.unsqueeze(-1))
        x = F.elu(sums.reshape(nodes, heads * width))
    return (ops.widen(x) ** 2).mean()


@program(batch=(1024, 256, 64), features=(1024, 512, 128), width=(512, 256, 64))
def clip(ops: Library, F: Any, given: Given, batch: int, features: int, width: int) -> Any:
    """CLIP: two towers and a contrastive loss of all pairs of a batch."""

    def tower(name: str) -> Any:
        hidden = F.gelu(dense(F, given, given.values(name, batch, features), f"{name}.enter", width))
        hidden = F.linear(hidden, given.parameter(f"{name}.leave", width, width))
        return F.normalize(F.layer_norm(hidden, (width,)), dim=-1)

    images, texts = tower("images"), tower("texts")
    logits = ops.widen(images @ texts.T) * ops.exp(ops.widen(given.parameter("temperature", 1)))
    labels = ops.arange(batch)
    return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)) / 2


@program(points=(262144, 16384, 4096), width=(256, 128, 64))
def nerf(ops: Library, F: Any, given: Given, points: int, width: int) -> Any:
    """NeRF: layers of encoded points, and the colour of rays of 64 points."""
    along_ray = 64
    x = given.values("points", points, 3)
    encoded = [x]
    for octave in range(10):
        encoded += [ops.sin(2.0**octave * x), ops.cos(2.0**octave * x)]
    entering = ops.cat(encoded, -1)
    hidden = entering
    for layer in range(8):
        if layer == 4:
            hidden = ops.cat([hidden, entering], -1)
        hidden = F.relu(dense(F, given, hidden, f"layer{layer}", width))
    found = ops.widen(dense(F, given, hidden, "head", 4))
    colour = ops.sigmoid(found[:, :3]).reshape(points // along_ray, along_ray, 3)
    density = F.relu(found[:, 3]).reshape(points // along_ray, along_ray)
    opacity = 1 - ops.exp(-density * 0.1)
    weights = opacity * ops.cumprod(1 - opacity + 1e-10, -1)
    seen = (weights.unsqueeze(-1) * colour).sum(1)
    return ((seen - 0.5) ** 2).mean()


@program(batch=(65536, 4096, 1024), width=(256, 128, 32))
def ppo(ops: Library, F: Any, given: Given, batch: int, width: int) -> Any:
    """PPO: the clipped loss of a policy, the loss of its value and an entropy."""
    observed, actions = 64, 18
    x = ops.tanh(dense(F, given, given.values("states", batch, observed), "first", width))
    x = ops.tanh(dense(F, given, x, "second", width))
    logits = ops.widen(F.linear(x, given.parameter("policy", actions, width)))
    value = ops.widen(F.linear(x, given.parameter("value", 1, width))).squeeze(-1)
    chances = F.log_softmax(logits, -1)
    chosen = ops.gather(chances, 1, given.integers("actions", actions, batch).unsqueeze(1)).squeeze(1)
    ratio = ops.exp(chosen - ops.widen(given.values("old", batch)) * 0.1 + 2.9)
    advantage = ops.widen(given.values("advantage", batch))
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    of_policy = -ops.minimum(ratio * advantage, ops.clamp(ratio, 0.8, 1.2) * advantage).mean()
    of_value = ((value - ops.widen(given.values("returns", batch))) ** 2).mean()
    entropy = -(ops.exp(chances) * chances).sum(-1).mean()
    return of_policy + 0.5 * of_value - 0.01 * entropy


@program(batch=(32768, 4096, 1024), width=(64, 32, 8))
def realnvp(ops: Library, F: Any, given: Given, batch: int, width: int) -> Any:
    """RealNVP: affine couplings and the likelihood of what they lead to."""
    half = width // 2
    x, log_determinant = given.values("samples", batch, width), 0
    dtype = x.dtype
    for layer in range(6):
        kept, changed = x[:, :half], ops.widen(x[:, half:])
        hidden = F.relu(dense(F, given, kept, f"enter{layer}", 256))
        found = ops.widen(dense(F, given, hidden, f"leave{layer}", width))
        log_scale = ops.tanh(found[:, :half])
        changed = changed * ops.exp(log_scale) + found[:, half:]
        log_determinant = log_determinant + log_scale.sum(-1)
        x = ops.flip(ops.cat([ops.widen(kept), changed], -1), (1,)).to(dtype)
    return (0.5 * (ops.widen(x) ** 2).sum(-1) - log_determinant).mean()


@program(batch=(8192, 1024, 256), width=(256, 128, 16), nearest=(10, 10, 5))
def contrastive_neighbours(ops: Library, F: Any, given: Given, batch: int, width: int, nearest: int) -> Any:
    """Contrastive neighbours: the most similar samples of a batch against all."""
    x = F.linear(given.values("samples", batch, width), given.parameter("weight", width, width))
    x = F.normalize(x, dim=-1)
    similar = ops.widen(x @ x.T) - 10 * ops.eye(batch)
    return (ops.logsumexp(similar, -1) - ops.topk(similar, nearest, dim=-1)[0].mean(-1)).mean()


@program(batch=(64, 8, 4), points=(256, 128, 20))
def sinkhorn(ops: Library, F: Any, given: Given, batch: int, points: int) -> Any:
    """Sinkhorn's optimal transport between two sets of points, in logarithms."""
    x = ops.widen(given.parameter("x", batch, points, 8, scale=1.0))
    y = ops.widen(given.parameter("y", batch, points, 8, scale=1.0))
    cost = ((x.unsqueeze(2) - y.unsqueeze(1)) ** 2).sum(-1)
    of_x, of_y = cost[:, :, 0] * 0, cost[:, 0] * 0
    for _ in range(10):
        of_x = -ops.logsumexp(of_y.unsqueeze(1) - cost, 2)
        of_y = -ops.logsumexp(of_x.unsqueeze(2) - cost, 1)
    plan = ops.exp(of_x.unsqueeze(2) + of_y.unsqueeze(1) - cost)
    return (plan * cost).sum((1, 2)).mean()


@program(points=(4096, 512, 64), neighbours=(32, 16, 8), width=(128, 32, 16))
def dgcnn(ops: Library, F: Any, given: Given, points: int, neighbours: int, width: int) -> Any:
    """DGCNN: the largest value of the edges to a point's neighbours, which are found by distance."""
    x = given.values("points", points, width)
    nearest = ops.topk(-squared_distances(ops, x, x), neighbours, dim=-1)[1]
    others = x[nearest.reshape(-1)].reshape(points, neighbours, width)
    edges = ops.cat([x.unsqueeze(1).expand(points, neighbours, width), others - x.unsqueeze(1)], -1)
    hidden = F.leaky_relu(dense(F, given, edges, "edges", width), 0.2)
    return (ops.widen(hidden.amax(1)) ** 2).mean()


@program(pairs=(16384, 1024, 32), vocabulary=(8192, 4096, 64), width=(256, 64, 16))
def skip_gram(ops: Library, F: Any, given: Given, pairs: int, vocabulary: int, width: int) -> Any:
    """Skip-gram with negative samples."""
    words, contexts = given.parameter("words", vocabulary, width), given.parameter("contexts", vocabulary, width)
    word = F.embedding(given.integers("word", vocabulary, pairs), words)
    near = F.embedding(given.integers("near", vocabulary, pairs), contexts)
    drawn = F.embedding(given.integers("drawn", vocabulary, pairs, 5), contexts)
    positive = ops.widen(word * near).sum(-1)
    negative = ops.widen(drawn * word.unsqueeze(1)).sum(-1)
    return -(F.logsigmoid(positive).mean() + F.logsigmoid(-negative).mean())


@program(batch=(512, 128, 16), fields=(64, 24, 6), width=(256, 32, 16))
def factorisation_machine(ops: Library, F: Any, given: Given, batch: int, fields: int, width: int) -> Any:
    """Factorisation machine with crossed fields and a dense layer."""
    categories, hidden = 1000, 256
    x = F.embedding(given.integers("fields", categories, batch, fields), given.parameter("table", categories, width))
    total = ops.widen(x).sum(1)
    second_order = 0.5 * (total**2 - (ops.widen(x) ** 2).sum(1)).sum(-1)
    products = ops.widen(ops.einsum("bid,bjd->bij", x, x))
    field = ops.arange(fields)
    crossed = ops.where(field.reshape(-1, 1) < field.reshape(1, -1), products, products * 0).sum((1, 2))
    deep = F.relu(F.linear(x.reshape(batch, fields * width), given.parameter("deep", hidden, fields * width)))
    deep = ops.widen(F.linear(deep, given.parameter("head", 1, hidden))).squeeze(-1)
    target = ops.widen(ops.widen(given.values("target", batch)) > 0)
    return F.binary_cross_entropy_with_logits(second_order + crossed + deep, target)


@program(batch=(64, 8, 4), objects=(64, 24, 6), width=(256, 64, 16))
def relation_network(ops: Library, F: Any, given: Given, batch: int, objects: int, width: int) -> Any:
    """Relation network: all pairs of objects through layers, then their sum."""
    x = given.values("objects", batch, objects, width)
    left = F.linear(x, given.parameter("left", width, width))
    right = F.linear(x, given.parameter("right", width, width))
    pairs = F.relu(left.unsqueeze(1) + right.unsqueeze(2))
    pairs = F.relu(dense(F, given, pairs, "pairs", width))
    return (ops.widen(pairs).sum((1, 2)) ** 2).mean()


@program(samples=(65536, 4096, 128), width=(64, 32, 8), codes=(1024, 256, 16))
def vector_quantisation(ops: Library, F: Any, given: Given, samples: int, width: int, codes: int) -> Any:
    """Vector quantisation: each sample's nearest code, and the losses that draw the two together."""
    x = F.linear(given.values("samples", samples, width), given.parameter("weight", width, width))
    table = given.parameter("codes", codes, width, scale=1.0)
    code = table[squared_distances(ops, x, table).argmin(1)]
    of_samples = (ops.widen(code.detach() - x) ** 2).mean()
    return of_samples + 0.25 * (ops.widen(code - x.detach()) ** 2).mean()


@program(states=(32768, 2048, 256))
def runge_kutta(ops: Library, F: Any, given: Given, states: int) -> Any:
    """Neural differential equation: five steps of Runge and Kutta's method of fourth order."""
    width, step = 16, 0.1

    def slope(x: Any) -> Any:
        return F.linear(ops.tanh(dense(F, given, x, "enter", 128)), given.parameter("leave", width, 128))

    x = given.values("states", states, width)
    for _ in range(5):
        first = slope(x)
        second = slope(x + step / 2 * first)
        third = slope(x + step / 2 * second)
        fourth = slope(x + step * third)
        x = x + step / 6 * (first + 2 * second + 2 * third + fourth)
    return (ops.widen(x) ** 2).mean()
