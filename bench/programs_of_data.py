"""Statistics, signals, search and evaluation, for `bench/programs.py`: programs without gradients. In: a library, its
`F`, what a program is given, and sizes. Out: one result, or several."""

from __future__ import annotations

import math
from typing import Any

from bench.program_kit import Given, Library, computation
from bench.programs_of_sets import squared_distances


@computation(points=(262144, 16384, 300), width=(64, 32, 6), centres=(256, 64, 7), rounds=(5, 5, 3))
def k_means(ops: Library, F: Any, given: Given, points: int, width: int, centres: int, rounds: int) -> Any:
    """Rounds of k-means."""
    x = given.values("points", points, width)
    middle = x[:centres]
    nearest = squared_distances(ops, x, middle).argmin(1)
    for _ in range(rounds):
        sums = (0 * middle).index_add(0, nearest, x)
        count = ops.zeros(centres, dtype=x.dtype).index_add(0, nearest, ops.ones(points, dtype=x.dtype))
        middle = sums / count.clamp(min=1).unsqueeze(1)
        nearest = squared_distances(ops, x, middle).argmin(1)
    return middle


@computation(asked=(4096, 512, 20), points=(65536, 8192, 300), width=(64, 32, 8))
def nearest_neighbours(ops: Library, F: Any, given: Given, asked: int, points: int, width: int) -> Any:
    """The ten nearest points, and the mean of their values."""
    x, new = given.values("points", points, width), given.values("new", asked, width)
    found, at = (-squared_distances(ops, new, x)).topk(10, 1)
    return -found, given.values("values", points)[at].mean(1)


@computation(samples=(1000000, 100000, 400))
def ranking_metrics(ops: Library, F: Any, given: Given, samples: int) -> Any:
    """The area under the ROC curve and the average precision of scores."""
    scores = given.values("scores", samples)
    labels = (given.values("labels", samples) + scores > 1).to(scores.dtype)
    order = ops.argsort(scores, descending=True)
    hits = labels[order]
    right, wrong = ops.cumsum(hits, 0), ops.cumsum(1 - hits, 0)
    area = (right * (1 - hits)).sum() / (right[-1] * wrong[-1])
    precision = (right / (right + wrong) * hits).sum() / right[-1]
    return area, precision


@computation(queries=(16384, 2048, 12), items=(200, 100, 20))
def ndcg(ops: Library, F: Any, given: Given, queries: int, items: int) -> Any:
    """Normalised discounted gains of the first ten items of each query."""
    scores = given.values("scores", queries, items)
    gains = 2.0 ** ops.widen(given.integers("grades", 5, queries, items)) - 1
    weights = 1 / ops.log2(ops.widen(ops.arange(10)) + 2)
    best = gains.topk(10, 1)[0]
    found = ops.gather(gains, 1, scores.topk(10, 1)[1])
    return (found * weights).sum(1) / (best * weights).sum(1).clamp(min=1e-9)


@computation(batch=(64, 8, 2), samples=(160000, 32000, 2000))
def mel_spectrogram(ops: Library, F: Any, given: Given, batch: int, samples: int) -> Any:
    """The logarithm of a mel spectrogram: frames, a window, a Fourier transform, bands."""
    length, hop, bands = 400, 160, 80
    frames = given.values("sound", batch, samples).unfold(1, length, hop)
    window = 0.5 - 0.5 * ops.cos(ops.widen(ops.arange(length)) * (2 * math.pi / length))
    found = ops.fft.rfft(frames * window)
    power = found.real**2 + found.imag**2
    return ops.log(power @ ops.exp(given.values("bands", length // 2 + 1, bands)) + 1e-6)


@computation(batch=(64, 4, 2), channels=(256, 64, 3), length=(4096, 1024, 50))
def long_convolution(ops: Library, F: Any, given: Given, batch: int, channels: int, length: int) -> Any:
    """A convolution as long as its input, by Fourier transforms."""
    x, taps = given.values("x", batch, channels, length), given.values("taps", channels, length)
    product = ops.fft.rfft(x, n=2 * length) * ops.fft.rfft(taps, n=2 * length)
    return ops.fft.irfft(product, n=2 * length)[..., :length]


@computation(images=(64, 4, 2), side=(512, 256, 24))
def edges(ops: Library, F: Any, given: Given, images: int, side: int) -> Any:
    """Edges of images: a Gaussian, Sobel, thinning along the gradient, and hysteresis."""
    x = given.values("images", images, 1, side, side)
    taps = ops.exp(-((ops.widen(ops.arange(5)) - 2) ** 2) / 2)
    taps = (taps / taps.sum()).to(x.dtype)
    x = F.conv2d(x, taps.reshape(1, 1, 1, 5), padding=(0, 2))
    x = F.conv2d(x, taps.reshape(1, 1, 5, 1), padding=(2, 0))
    sobel = x.new_tensor([[-1.0, 0, 1], [-2, 0, 2], [-1, 0, 1]])
    across = F.conv2d(x, sobel.reshape(1, 1, 3, 3), padding=1)
    down = F.conv2d(x, sobel.T.reshape(1, 1, 3, 3), padding=1)
    strength = ops.sqrt(across**2 + down**2)
    highest = F.max_pool2d(strength, 3, stride=1, padding=1)
    thin = ops.where(strength == highest, strength, 0.0)
    strong, weak = (thin > 1.2).to(x.dtype), (strength > 0.8).to(x.dtype)
    for _ in range(4):
        strong = F.max_pool2d(strong, 3, stride=1, padding=1) * weak
    return strong.mean((1, 2, 3)), thin


@computation(images=(64, 8, 2), side=(512, 128, 24))
def equalised_histograms(ops: Library, F: Any, given: Given, images: int, side: int) -> Any:
    """Images whose grey values are spread evenly: a histogram of each, its running sum, and a table."""
    levels = (ops.sigmoid(given.values("images", images, side * side)) * 255.999).to(given.integers("kind", 2, 1).dtype)
    counts = ops.zeros(images, 256).scatter_add(1, levels.long(), ops.ones(images, side * side))
    table = ops.cumsum(counts, 1) / (side * side)
    return ops.gather(table, 1, levels.long())


@computation(images=(64, 8, 2), side=(256, 128, 16))
def augmented_images(ops: Library, F: Any, given: Given, images: int, side: int) -> Any:
    """Images turned by an angle, cropped, resized, flipped, with other colours, normalised."""
    x = ops.sigmoid(given.values("images", images, 3, side, side))
    angle = given.values("angles", images) * 0.3
    row = (ops.widen(ops.arange(side)) / (side - 1) * 2 - 1).reshape(1, side, 1)
    column = (ops.widen(ops.arange(side)) / (side - 1) * 2 - 1).reshape(1, 1, side)
    cos, sin = ops.cos(angle).reshape(-1, 1, 1), ops.sin(angle).reshape(-1, 1, 1)
    grid = ops.stack([cos * column - sin * row, sin * column + cos * row], -1)
    x = F.grid_sample(x, grid, align_corners=True)
    x = x[:, :, side // 8 : -side // 8, side // 8 : -side // 8]
    x = ops.flip(F.interpolate(x, size=(side, side), mode="bilinear", align_corners=False), (3,))
    grey = x.mean(1, keepdim=True)
    x = (grey + 1.3 * (x - grey)).clamp(0, 1) ** 0.9
    return (x - x.mean((2, 3), keepdim=True)) / (x.std((2, 3), keepdim=True) + 1e-3)


@computation(boxes=(4096, 600, 40))
def box_suppression(ops: Library, F: Any, given: Given, boxes: int) -> Any:
    """Boxes that overlap a box with a higher score are dropped, in four rounds."""
    corner, size = given.values("corner", boxes, 2) * 3, ops.exp(given.values("size", boxes, 2) * 0.3)
    order = ops.argsort(given.values("scores", boxes), descending=True)
    low, high = corner[order], (corner + size)[order]
    shared = ops.minimum(high.unsqueeze(1), high.unsqueeze(0)) - ops.maximum(low.unsqueeze(1), low.unsqueeze(0))
    inside = shared.clamp(min=0).prod(-1)
    area = (high - low).prod(-1)
    overlap = inside / (area.unsqueeze(1) + area.unsqueeze(0) - inside)
    worse = ops.triu((overlap > 0.3).to(low.dtype), 1)
    kept = ops.ones(boxes, dtype=low.dtype)
    for _ in range(4):
        kept = ((kept.unsqueeze(1) * worse).amax(0) < 0.5).to(low.dtype)
    return kept, overlap.sum(1)


@computation(batch=(512, 64, 3), steps=(256, 100, 10), states=(64, 24, 5))
def viterbi(ops: Library, F: Any, given: Given, batch: int, steps: int, states: int) -> Any:
    """The best path through the states of a Markov chain, and its score."""
    moves = given.values("moves", states, states)
    score = given.values("seen", batch, steps, states)[:, 0]
    back = []
    for step in range(1, steps):
        options = score.unsqueeze(2) + moves
        score = options.amax(1) + given.values("seen")[:, step]
        back.append(options.argmax(1))
    at = score.argmax(1, keepdim=True)
    path = [at]
    for best in reversed(back):
        at = ops.gather(best, 1, at)
        path.append(at)
    return score.amax(1), ops.cat(path[::-1], 1)


@computation(pairs=(512, 64, 4), length=(96, 48, 9))
def time_warping(ops: Library, F: Any, given: Given, pairs: int, length: int) -> Any:
    """The cost of aligning two series, along the diagonals of the matrix of costs."""
    first, second = given.values("first", pairs, length), given.values("second", pairs, length)
    cost = (first.unsqueeze(2) - second.unsqueeze(1)) ** 2
    padded = F.pad(cost, (0, length)).reshape(pairs, -1)[:, :-length].reshape(pairs, length, 2 * length - 1)
    at = ops.arange(length)
    before = ops.where(at == 0, padded[:, :, 0], 1e9)
    older = ops.full((pairs, length), 1e9, dtype=cost.dtype)
    for diagonal in range(1, 2 * length - 1):
        from_above = F.pad(before[:, :-1], (1, 0), value=1e9)
        from_corner = F.pad(older[:, :-1], (1, 0), value=1e9)
        least = ops.minimum(ops.minimum(before, from_above), from_corner)
        is_inside = (at <= diagonal) & (at > diagonal - length)
        before, older = ops.where(is_inside, padded[:, :, diagonal] + least, 1e9), before
    return before[:, -1]


@computation(trees=(100, 50, 4), depth=(10, 8, 3), rows=(65536, 4096, 30), width=(64, 32, 6))
def random_forest(ops: Library, F: Any, given: Given, trees: int, depth: int, rows: int, width: int) -> Any:
    """Decision trees: each row descends through nodes that compare one of its values."""
    x = given.values("rows", rows, width)
    features = given.integers("features", width, trees, 2**depth)
    limits, leaves = given.values("limits", trees, 2**depth), given.values("leaves", trees, 2**depth)
    tree = ops.arange(trees).reshape(1, trees)
    at = given.integers("start", 1, rows, trees) + 1
    for _ in range(depth - 1):
        feature = features[tree, at]
        goes_right = ops.gather(x, 1, feature) > limits[tree, at]
        at = 2 * at + goes_right.to(at.dtype)
    return leaves[tree, at].mean(1)


@computation(batch=(64, 16, 2), beams=(8, 5, 3), vocabulary=(32000, 2000, 30), steps=(8, 8, 3))
def beam_search(ops: Library, F: Any, given: Given, batch: int, beams: int, vocabulary: int, steps: int) -> Any:
    """The most likely sequences under a model of pairs of tokens."""
    table, head = given.values("table", vocabulary, 64), given.values("head", 64, vocabulary) * 0.3
    token = given.integers("first", vocabulary, batch, 1)
    score = 0 * table[token].sum(-1)
    for _ in range(steps):
        chances = F.log_softmax(table[token] @ head, dim=-1) + score.unsqueeze(-1)
        score, best = chances.reshape(batch, -1).topk(beams, 1)
        token = best % vocabulary
    return score


@computation(series=(1024, 128, 4), days=(4096, 1000, 60))
def moving_statistics(ops: Library, F: Any, given: Given, series: int, days: int) -> Any:
    """Moving means and deviations of prices, their largest fall, and how they vary together."""
    moves = given.values("moves", series, days) * 0.01
    prices = ops.exp(ops.cumsum(moves, 1))
    window = 20
    sums = ops.cumsum(F.pad(moves, (1, 0)), 1)
    squares = ops.cumsum(F.pad(moves * moves, (1, 0)), 1)
    mean = (sums[:, window:] - sums[:, :-window]) / window
    deviation = ops.sqrt(((squares[:, window:] - squares[:, :-window]) / window - mean * mean).clamp(min=0))
    fall = (prices / ops.cummax(prices, 1)[0] - 1).amin(1)
    centred = moves - moves.mean(1, keepdim=True)
    together = centred @ centred.T / (days - 1)
    return mean, deviation, fall, together


@computation(documents=(4096, 512, 20), words=(200, 100, 12), vocabulary=(30000, 5000, 60))
def term_weights(ops: Library, F: Any, given: Given, documents: int, words: int, vocabulary: int) -> Any:
    """Weights of the terms of documents, and the similarity of each with one document."""
    tokens = given.integers("tokens", vocabulary, documents, words)
    counts = ops.zeros(documents, vocabulary).scatter_add(1, tokens.long(), ops.ones(documents, words))
    in_documents = (counts > 0).to(counts.dtype).sum(0)
    weights = counts * ops.log((1 + documents) / (1 + in_documents))
    weights = weights / ops.sqrt((weights * weights).sum(1, keepdim=True))
    return weights @ weights[0]


@computation(rows=(4096, 512, 20), inner=(4096, 1024, 32), columns=(4096, 1024, 24))
def quantised_product(ops: Library, F: Any, given: Given, rows: int, inner: int, columns: int) -> Any:
    """A product of numbers that are rounded to 8 bits, with a scale for each row."""

    def rounded(x: Any) -> Any:
        scale = x.abs().amax(1, keepdim=True) / 127
        return ops.round(x / scale).clamp(-127, 127) * scale

    return rounded(given.values("x", rows, inner)) @ rounded(given.values("weight", columns, inner)).T


@computation(samples=(1000000, 100000, 500), bins=(1000, 200, 10))
def summary_statistics(ops: Library, F: Any, given: Given, samples: int, bins: int) -> Any:
    """Quantiles, moments, and the mean of a value in each bin of another."""
    x, y = given.values("x", samples), given.values("y", samples)
    ordered = ops.sort(x)[0]
    quantiles = ops.stack([ordered[int(share * (samples - 1))] for share in (0.01, 0.25, 0.5, 0.75, 0.99)])
    centred = (x - x.mean()) / x.std()
    moments = ops.stack([(centred**3).mean(), (centred**4).mean(), (centred * (y - y.mean())).mean()])
    at = (ops.floor(x * 32).long() + bins // 2).clamp(0, bins - 1)
    sums = ops.zeros(bins).scatter_add(0, at, y)
    counts = ops.zeros(bins).scatter_add(0, at, ops.ones(samples))
    return quantiles, moments, sums / counts.clamp(min=1)
