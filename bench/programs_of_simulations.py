"""Simulations and solvers, for `bench/programs.py`: programs without gradients. In: a library, its `F`, what a program
is given, and sizes. Out: one result, or several."""

from __future__ import annotations

import math
from typing import Any

from bench.program_kit import Given, Library, computation


@computation(side=(2048, 512, 24), steps=(50, 20, 3))
def heat(ops: Library, F: Any, given: Given, side: int, steps: int) -> Any:
    """The heat equation on a plate whose edges keep their temperature, by explicit steps."""
    x = given.values("temperatures", side, side)
    for _ in range(steps):
        around = x[:-2, 1:-1] + x[2:, 1:-1] + x[1:-1, :-2] + x[1:-1, 2:]
        x = F.pad(x[1:-1, 1:-1] + 0.2 * (around - 4 * x[1:-1, 1:-1]), (1, 1, 1, 1))
    return x


@computation(side=(2048, 512, 24), steps=(20, 10, 3))
def wave(ops: Library, F: Any, given: Given, side: int, steps: int) -> Any:
    """The wave equation on a torus, by shifts."""
    now = given.values("heights", side, side)
    before = now
    for _ in range(steps):
        around = ops.roll(now, 1, 0) + ops.roll(now, -1, 0) + ops.roll(now, 1, 1) + ops.roll(now, -1, 1)
        now, before = 2 * now - before + 0.1 * (around - 4 * now), now
    return now


@computation(side=(2048, 512, 24), steps=(20, 10, 3))
def game_of_life(ops: Library, F: Any, given: Given, side: int, steps: int) -> Any:
    """The game of life, its neighbours counted by a convolution."""
    cells = (given.values("cells", 1, 1, side, side) > 0.5).to(given.values("cells").dtype)
    weight = ops.ones(1, 1, 3, 3, dtype=cells.dtype)
    for _ in range(steps):
        around = F.conv2d(cells, weight, padding=1) - cells
        cells = ((around == 3) | ((around == 2) & (cells == 1))).to(cells.dtype)
    return cells


@computation(side=(1024, 256, 16), steps=(10, 5, 2))
def gray_scott(ops: Library, F: Any, given: Given, side: int, steps: int) -> Any:
    """Two substances that react and diffuse."""
    u = 1 - 0.1 * ops.sigmoid(given.values("u", 1, 1, side, side))
    v = 0.1 * ops.sigmoid(given.values("v", 1, 1, side, side))
    weight = given.values("u").new_tensor([[0.05, 0.2, 0.05], [0.2, -1, 0.2], [0.05, 0.2, 0.05]]).reshape(1, 1, 3, 3)
    for _ in range(steps):
        rate = u * v * v
        spread_u = F.conv2d(F.pad(u, (1, 1, 1, 1), mode="circular"), weight)
        spread_v = F.conv2d(F.pad(v, (1, 1, 1, 1), mode="circular"), weight)
        u = u + 0.16 * spread_u - rate + 0.035 * (1 - u)
        v = v + 0.08 * spread_v + rate - 0.1 * v
    return u, v


@computation(side=(1024, 256, 16), steps=(10, 4, 2))
def lattice_boltzmann(ops: Library, F: Any, given: Given, side: int, steps: int) -> Any:
    """A fluid as nine populations of particles, which move and collide."""
    ways = [(0, 0), (1, 0), (0, 1), (-1, 0), (0, -1), (1, 1), (-1, 1), (-1, -1), (1, -1)]
    shares = [4 / 9] + [1 / 9] * 4 + [1 / 36] * 4
    density = 1 + 0.05 * given.values("density", side, side)
    parts = [share * density for share in shares]
    for _ in range(steps):
        parts = [ops.roll(part, way, (0, 1)) for part, way in zip(parts, ways, strict=True)]
        density = sum(parts[1:], parts[0])
        x = sum((way[0] * part for part, way in zip(parts, ways, strict=True) if way[0]), 0 * density) / density
        y = sum((way[1] * part for part, way in zip(parts, ways, strict=True) if way[1]), 0 * density) / density
        square = 1.5 * (x * x + y * y)
        for at, (way, share) in enumerate(zip(ways, shares, strict=True)):
            along = 3 * (way[0] * x + way[1] * y)
            settled = share * density * (1 + along + along * along / 2 - square)
            parts[at] = parts[at] + 0.6 * (settled - parts[at])
    return density, x, y


@computation(bodies=(8192, 1024, 64), steps=(5, 3, 2))
def n_bodies(ops: Library, F: Any, given: Given, bodies: int, steps: int) -> Any:
    """Bodies that attract each other, leapfrog."""
    place, speed = given.values("place", bodies, 3), given.values("speed", bodies, 3) * 0.1
    mass = ops.sigmoid(given.values("mass", bodies)) / bodies
    for _ in range(steps):
        apart = place.unsqueeze(0) - place.unsqueeze(1)
        weight = ((apart**2).sum(-1) + 0.01) ** -1.5 * mass
        speed = speed + 0.01 * (apart * weight.unsqueeze(-1)).sum(1)
        place = place + 0.01 * speed
    return place, speed


@computation(atoms=(4096, 512, 48), steps=(3, 2, 2))
def lennard_jones(ops: Library, F: Any, given: Given, atoms: int, steps: int) -> Any:
    """Forces between atoms of a periodic box that are nearer than a limit, and the energy."""
    size = float(round(atoms ** (1 / 3) * 2))
    place = ops.sigmoid(given.values("place", atoms, 3)) * size
    energy = place.sum() * 0
    for _ in range(steps):
        apart = place.unsqueeze(1) - place.unsqueeze(0)
        apart = apart - size * ops.round(apart / size)
        square = (apart * apart).sum(-1)
        near = (square < 6.25) & (square > 0)
        inverse = ops.where(near, 1 / (square + 1), 0.0) ** 3
        energy = (inverse * inverse - inverse).sum() / 2
        force = ((2 * inverse * inverse - inverse) / (square + 1)).unsqueeze(-1) * apart
        place = place + 1e-3 * force.sum(1)
    return place, energy


@computation(paths=(262144, 16384, 256), steps=(64, 64, 8))
def asian_option(ops: Library, F: Any, given: Given, paths: int, steps: int) -> Any:
    """The price of an option on the mean of a price, by simulated paths."""
    moves = (0.03 - 0.02) / steps + 0.2 / math.sqrt(steps) * given.values("moves", paths, steps)
    prices = 100 * ops.exp(ops.cumsum(moves, 1))
    gains = F.relu(prices.mean(1) - 100)
    return gains.mean(), gains.std(), prices.amax(1).mean(), prices.amin(1).mean()


@computation(options=(16777216, 1048576, 1000))
def black_scholes(ops: Library, F: Any, given: Given, options: int) -> Any:
    """Prices of options by the formula, with two error functions."""
    price, strike = ops.exp(0.1 * given.values("price", options)), ops.exp(0.1 * given.values("strike", options))
    years = 0.1 + ops.sigmoid(given.values("years", options))
    spread = 0.2 * ops.sqrt(years)
    first = (ops.log(price / strike) + (0.03 + 0.02) * years) / spread
    calls = price * _normal(ops, first) - strike * ops.exp(-0.03 * years) * _normal(ops, first - spread)
    return calls, calls - price + strike * ops.exp(-0.03 * years)


def _normal(ops: Library, x: Any) -> Any:
    return 0.5 * (1 + ops.erf(x / math.sqrt(2)))


@computation(systems=(262144, 16384, 128), steps=(100, 40, 5))
def lorenz(ops: Library, F: Any, given: Given, systems: int, steps: int) -> Any:
    """Many Lorenz systems by Runge-Kutta steps of fourth order."""

    def slope(state: Any) -> Any:
        x, y, z = state[0], state[1], state[2]
        return ops.stack([10 * (y - x), x * (28 - z) - y, x * y - 8 / 3 * z])

    state = given.values("state", 3, systems)
    for _ in range(steps):
        first = slope(state)
        second = slope(state + 0.0025 * first)
        third = slope(state + 0.0025 * second)
        fourth = slope(state + 0.005 * third)
        state = state + 0.005 / 6 * (first + 2 * second + 2 * third + fourth)
    return state


@computation(side=(2048, 512, 24), rounds=(50, 30, 4))
def mandelbrot(ops: Library, F: Any, given: Given, side: int, rounds: int) -> Any:
    """The rounds until points of a plane escape."""
    x = (ops.widen(ops.arange(side)) / side * 3 - 2).reshape(1, side)
    y = (ops.widen(ops.arange(side)) / side * 2.5 - 1.25).reshape(side, 1)
    real, imaginary = 0 * (x + y), 0 * (x + y)
    count = 0 * (x + y)
    for _ in range(rounds):
        real, imaginary = real * real - imaginary * imaginary + x, 2 * real * imaginary + y
        inside = real * real + imaginary * imaginary < 4
        count = count + ops.where(inside, 1.0, 0.0)
        real, imaginary = ops.where(inside, real, 2.0), ops.where(inside, imaginary, 0.0)
    return count


@computation(side=(2048, 256, 16), steps=(4, 4, 2))
def ising(ops: Library, F: Any, given: Given, side: int, steps: int) -> Any:
    """Spins of a checkerboard, flipped by given random numbers."""
    spins = ops.where(given.values("spins", side, side) > 0, 1.0, -1.0)
    at = ops.arange(side)
    colour = (at.reshape(side, 1) + at.reshape(1, side)) % 2
    for step in range(steps):
        around = ops.roll(spins, 1, 0) + ops.roll(spins, -1, 0) + ops.roll(spins, 1, 1) + ops.roll(spins, -1, 1)
        chance = ops.exp(-0.8 * spins * around)
        flips = (ops.sigmoid(given.values(f"random{step}", side, side)) < chance) & (colour == step % 2)
        spins = ops.where(flips, -spins, spins)
    return spins, spins.mean()


@computation(unknowns=(4096, 600, 40), steps=(50, 20, 4))
def conjugate_gradients(ops: Library, F: Any, given: Given, unknowns: int, steps: int) -> Any:
    """A system of linear equations with a dense symmetric matrix."""
    factor = given.values("factor", unknowns, unknowns) / math.sqrt(unknowns)
    matrix = factor @ factor.T + ops.eye(unknowns, dtype=factor.dtype)
    x = given.values("right", unknowns) * 0
    rest = given.values("right")
    way, square = rest, (rest * rest).sum()
    for _ in range(steps):
        moved = matrix @ way
        length = square / (way * moved).sum()
        x, rest = x + length * way, rest - length * moved
        square, old = (rest * rest).sum(), square
        way = rest + square / old * way
    return x


@computation(samples=(65536, 4096, 200), width=(512, 128, 12), steps=(10, 10, 3))
def power_iteration(ops: Library, F: Any, given: Given, samples: int, width: int, steps: int) -> Any:
    """The largest principal component of samples."""
    x = given.values("samples", samples, width) * (1 + ops.widen(ops.arange(width)) / width * 4)
    x = x - x.mean(0)
    way = given.values("way", width)
    for _ in range(steps):
        way = x.T @ (x @ way)
        way = way / ops.sqrt((way * way).sum())
    return (x @ way).var(), way * way


@computation(tracks=(65536, 4096, 16), steps=(30, 30, 4))
def kalman(ops: Library, F: Any, given: Given, tracks: int, steps: int) -> Any:
    """Positions and speeds of many tracks, from positions with noise."""
    place, speed = given.values("seen", tracks, steps)[:, 0], given.values("speed", tracks)
    a, b, c = 1.0 + 0 * place, 0 * place, 1.0 + 0 * place
    found = []
    for step in range(steps):
        place = place + speed
        a, b, c = a + 2 * b + c + 0.01, b + c, c + 0.01
        gain, gain_of_speed = a / (a + 0.5), b / (a + 0.5)
        missed = given.values("seen")[:, step] - place
        place, speed = place + gain * missed, speed + gain_of_speed * missed
        a, b, c = (1 - gain) * a, (1 - gain) * b, c - gain_of_speed * b
        found.append(place)
    return ops.stack(found, 1)


@computation(nodes=(512, 128, 24))
def shortest_paths(ops: Library, F: Any, given: Given, nodes: int) -> Any:
    """Lengths of the shortest paths between all nodes of a graph, by doubling."""
    lengths = ops.exp(given.values("lengths", nodes, nodes)) * (1 - ops.eye(nodes))
    for _ in range(math.ceil(math.log2(nodes))):
        lengths = ops.minimum(lengths, (lengths.unsqueeze(2) + lengths.unsqueeze(0)).amin(1))
    return lengths


@computation(nodes=(1000000, 50000, 200), edges=(8000000, 400000, 1500), rounds=(10, 10, 3))
def page_rank(ops: Library, F: Any, given: Given, nodes: int, edges: int, rounds: int) -> Any:
    """The rank of each node of a graph, from its edges."""
    source, target = given.integers("sources", nodes, edges), given.integers("targets", nodes, edges)
    kind = given.values("kind", 1).dtype
    leaving = ops.zeros(nodes, dtype=kind).index_add(0, source, ops.ones(edges, dtype=kind)).clamp(min=1)
    rank = ops.full((nodes,), 1 / nodes, dtype=kind)
    for _ in range(rounds):
        given_on = (rank / leaving)[source]
        rank = 0.15 / nodes + 0.85 * ops.zeros(nodes, dtype=kind).index_add(0, target, given_on)
    return rank


@computation(points=(1024, 200, 24), asked=(512, 100, 10))
def gaussian_process(ops: Library, F: Any, given: Given, points: int, asked: int) -> Any:
    """The mean and the variance of a Gaussian process, by a Cholesky factor."""
    x, y = given.values("x", points, 2), given.values("y", points, 1)
    new = given.values("new", asked, 2)

    def kernel(left: Any, right: Any) -> Any:
        return ops.exp(-((left.unsqueeze(1) - right.unsqueeze(0)) ** 2).sum(-1))

    factor = ops.linalg.cholesky(kernel(x, x) + 0.5 * ops.eye(points, dtype=x.dtype))
    across = ops.linalg.solve_triangular(factor, kernel(x, new), upper=False)
    solved = ops.linalg.solve_triangular(factor, y, upper=False)
    return (across.T @ solved).reshape(-1), 1 - (across * across).sum(0)
