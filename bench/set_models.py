"""Networks of points, graphs and tables, for `bench/networks.py`. In: a `Kit` and sizes. Out: a model of that library,
as in `bench/models.py`."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from bench.models import Kit, Sizes


def pointnet(kit: Kit, sizes: Sizes) -> Any:
    """Points (batch, 3, points) to logits of the whole: the same layers for each point, then the largest of all."""
    nn, base = kit.nn, sizes["base"]

    def layers_of(*widths: int) -> Any:
        layers: list[Any] = []
        for entering, leaving in pairwise(widths):
            layers += [nn.Conv1d(entering, leaving, 1), nn.BatchNorm1d(leaving), nn.ReLU()]
        return nn.Sequential(*layers)

    class PointNet(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.turn = layers_of(3, base, 2 * base, 16 * base)
            self.turn_head = nn.Linear(16 * base, 9)
            self.points = layers_of(3, base, base)
            self.wide = layers_of(base, base, 2 * base, 16 * base)
            self.hidden = nn.Linear(16 * base, 4 * base)
            self.norm = nn.BatchNorm1d(4 * base)
            self.head = nn.Linear(4 * base, sizes["classes"])

        def forward(self, points: Any) -> Any:
            turn = self.turn_head(self.turn(points).amax(2)).reshape(-1, 3, 3)
            found = self.wide(self.points(turn @ points)).amax(2)
            return self.head(self.norm(self.hidden(found)).relu())

    return PointNet()


def graph_network(kit: Kit, sizes: Sizes) -> Any:
    """Features (nodes, features) to logits of each node: sums over edges between products, each divided by the root of
    the degrees of its ends."""
    nn, width, nodes = kit.nn, sizes["width"], sizes["nodes"]

    class Layer(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self, entering: int, leaving: int) -> None:
            super().__init__()
            self.linear = nn.Linear(entering, leaving)

        def forward(self, x: Any, source: Any, target: Any, scale: Any) -> Any:
            x = self.linear(x)
            return (x * 0).index_add(0, target, x[source] * scale)

    class GraphNetwork(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            widths = [sizes["features"], *[width] * (sizes["layers"] - 1), sizes["classes"]]
            self.layers = nn.ModuleList([Layer(*pair) for pair in pairwise(widths)])
            # Few nodes have many edges, as in graphs of people or of papers.
            generator = np.random.default_rng(2)
            ends = (nodes * generator.random((2, sizes["edges"])) ** np.array([[1], [2]])).astype(np.int64)
            self.register_buffer("source", kit.integers(np.concatenate([ends[0], np.arange(nodes)])))
            self.register_buffer("target", kit.integers(np.concatenate([ends[1], np.arange(nodes)])))

        def forward(self, x: Any) -> Any:
            ones = (x[:1, :1] * 0 + 1).expand(self.target.shape[0], 1)
            degree = (x[:, :1] * 0).index_add(0, self.target, ones)
            root = degree.clamp(1.0).rsqrt()
            scale = root[self.source] * root[self.target]
            for number, layer in enumerate(self.layers):
                x = layer(x.relu() if number else x, self.source, self.target, scale)
            return x

    return GraphNetwork()


def recommender(kit: Kit, sizes: Sizes) -> Any:
    """Categories (batch, tables * bag) to two scores: sums of rows of tables, beside dense features, and the products
    of each pair of them (DLRM)."""
    nn, width, tables, bag, batch = kit.nn, sizes["width"], sizes["tables"], sizes["bag"], sizes["batch"]
    hidden = sizes["hidden"]
    pairs = np.stack(np.tril_indices(tables + 1, -1))

    class Recommender(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            count = sizes["vocabulary"]
            self.tables = nn.ModuleList([nn.EmbeddingBag(count, width, mode="sum") for _ in range(tables)])
            self.bottom1 = nn.Linear(13, hidden)
            self.bottom2 = nn.Linear(hidden, width)
            self.top1 = nn.Linear(width + pairs.shape[1], hidden)
            self.top2 = nn.Linear(hidden, hidden)
            self.head = nn.Linear(hidden, 2)
            self.register_buffer("features", kit.zeros(batch, 13))
            self.register_buffer("pairs", kit.integers(pairs))

        def forward(self, categories: Any) -> Any:
            dense = self.bottom2(self.bottom1(self.features).relu()).relu()
            parts = categories.reshape(batch, tables, bag)
            rows = [table(parts[:, number]) for number, table in enumerate(self.tables)]
            found = kit.concatenate([part.unsqueeze(1) for part in (dense, *rows)], 1)
            products = (found @ found.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
            x = self.top1(kit.concatenate([dense, products], 1)).relu()
            return self.head(self.top2(x).relu())

    return Recommender()
