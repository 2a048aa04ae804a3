"""Takes a function, a weight, an interval and a number of terms. Gives a polynomial of nearly least greatest error.

`python tools/minimax.py` prints the tables of tilewright/codegen/emulation/transcendental.py, and those of float32 in
tilewright/tensor/primitives/functions.py and gamma.py (there highest power first), with the greatest relative error
that the exact polynomial leaves. It stands outside the flow: the package holds only the printed numbers. Needs mpmath.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from mpmath import mp, mpf

mp.dps = 50
Function = Callable[[mpf], mpf]


def minimax(target: Function, weight: Function, low: mpf, high: mpf, count: int) -> tuple[list[mpf], mpf]:
    """Lawson's iteration: least squares whose weights grow where the error is large, until the error is level.

    Gives the coefficients, lowest power first, and the greatest weighted error on the points."""
    steps = 10 * count
    points = [(low + high) / 2 - (high - low) / 2 * mp.cos(mp.pi * (k + 0.5) / steps) for k in range(steps)]
    rows = [[weight(point) * point**power for power in range(count)] for point in points]
    values = [weight(point) * target(point) for point in points]
    emphasis = [mpf(1) / steps] * steps
    best: tuple[list[mpf], mpf] = ([], mp.inf)
    for _ in range(25):
        normal = mp.matrix(count, count)
        right = mp.matrix(count, 1)
        for row, value, factor in zip(rows, values, emphasis, strict=True):
            for i in range(count):
                right[i] += factor * row[i] * value
                for j in range(i + 1):
                    normal[i, j] += factor * row[i] * row[j]
        for i in range(count):
            for j in range(i):
                normal[j, i] = normal[i, j]
        coefficients = list(mp.cholesky_solve(normal, right))
        errors = [abs(mp.fdot(row, coefficients) - value) for row, value in zip(rows, values, strict=True)]
        if max(errors) < best[1]:
            best = (coefficients, max(errors))
        emphasis = [factor * error for factor, error in zip(emphasis, errors, strict=True)]
        total = mp.fsum(emphasis)
        emphasis = [factor / total for factor in emphasis]
    return best


def rounded_minimax(target: Function, weight: Function, low: mpf, high: mpf, count: int) -> tuple[list[float], mpf]:
    """Coefficients that are float32 numbers: each is rounded in turn, the later ones fitted to what it leaves."""
    found: list[float] = []

    def rest(x: mpf) -> mpf:
        return (target(x) - mp.fsum(c * x**k for k, c in enumerate(found))) / x ** len(found)

    for left in range(count, 0, -1):
        coefficients, _ = minimax(rest, lambda x: weight(x) * x ** len(found), low, high, left)
        found.append(struct.unpack("f", struct.pack("f", float(coefficients[0])))[0])
    return found, greatest_error(target, weight, low, high, found)


def greatest_error(target: Function, weight: Function, low: mpf, high: mpf, coefficients: list[float]) -> mpf:
    points = [low + (high - low) * (k + mpf(0.5)) / 500 for k in range(500)]
    return max(abs(weight(x) * (mp.polyval(coefficients[::-1], x) - target(x))) for x in points)


def report(name: str, target: Function, weight: Function, low: mpf, high: mpf, count: int) -> None:
    """Print one table; those whose name ends in 32 hold float32 numbers."""
    fit = rounded_minimax if name.endswith("32") else minimax
    coefficients, error = fit(target, weight, low, high, count)
    print(f"{name}: greatest relative error 2**{float(mp.log(error, 2)):.1f}")
    for coefficient in coefficients:
        print(f"    {float(coefficient)!r},")


def report_half_pi(bits: int, mantissa: int, turn_bits: int) -> None:
    """pi/2 in three parts; the first two times a number of turns with that many bits fit a mantissa."""
    rest, length = mp.pi / 2, mantissa - turn_bits
    parts = []
    for number in (1, 2):
        unit = mpf(2) ** (1 - number * length)
        parts.append(float(mp.floor(rest / unit) * unit))
        rest -= parts[-1]
    last = float(rest)
    parts.append(struct.unpack("f", struct.pack("f", last))[0] if bits == 32 else last)
    print(f"half pi {bits}: {parts}, for angles below {float((2**turn_bits - mpf(0.5)) * mp.pi / 2):.1f}")


def main() -> None:
    report_half_pi(32, 24, 6)
    report_half_pi(64, 53, 10)
    ln2 = mp.log(2)
    half = mpf(0.5)
    for bits, terms in ((32, 6), (64, 11)):
        # 2**r = 1 + r*q(r) for |r| <= 1/2; exp(r) = 1 + r + r*r*q(r) for |r| <= ln(2)/2.
        report(f"exp2 {bits}", lambda r: (2**r - 1) / r, lambda r: r / 2**r, -half, half, terms)
        low, high = -half * ln2, half * ln2
        report(f"exp {bits}", lambda r: (mp.expm1(r) - r) / r**2, lambda r: r**2 / mp.exp(r), low, high, terms - 1)
    low, high = 1 / mp.sqrt(2) - 1, mp.sqrt(2) - 1
    for bits, terms in ((32, 10), (64, 21)):
        # log2(1 + f) = f + f*q(f); log(1 + f) = f + f*f*q(f), for 1 + f between the square roots of 1/2 and 2.
        report(f"log2 {bits}", lambda f: mp.log1p(f) / ln2 / f - 1, lambda f: f / mp.log1p(f), low, high, terms)
        report(f"log {bits}", lambda f: (mp.log1p(f) - f) / f**2, lambda f: f**2 / mp.log1p(f), low, high, terms - 1)
    root = mp.sqrt
    for bits, terms, end in ((32, 3, mp.pi / 4), (64, 7, mpf(1))):
        # sin(r) = r + r*z*q(z) with z = r*r. The double takes arguments below 1 as they are.
        report(
            f"sin {bits}",
            lambda z: (mp.sin(root(z)) / root(z) - 1) / z,
            lambda z: z * root(z) / mp.sin(root(z)),
            mpf(0),
            end**2,
            terms,
        )
    for bits, terms in ((32, 3), (64, 6)):
        # cos(r) = 1 - z/2 + z*z*q(z) with z = r*r, for |r| <= pi/4.
        report(
            f"cos {bits}",
            lambda z: (mp.cos(root(z)) - 1 + z / 2) / z**2,
            lambda z: z**2 / mp.cos(root(z)),
            mpf(0),
            (mp.pi / 4) ** 2,
            terms,
        )
    # tanh(r) = r + r*z*q(z) and atan alike; erf(r) = r + r*q(z) below 1, and 1 - exp(-x*x)*q(x - 2) above.
    for name, function, end, terms in (("tanh 32", mp.tanh, mpf(0.625), 6), ("atan 32", mp.atan, mpf(0.66), 7)):
        report(
            name,
            lambda z, f=function: (f(root(z)) / root(z) - 1) / z,
            lambda z, f=function: z * root(z) / f(root(z)),
            mpf(0),
            end**2,
            terms,
        )
    report("erf 32", lambda z: mp.erf(root(z)) / root(z) - 1, lambda z: root(z) / mp.erf(root(z)), mpf(0), mpf(1), 7)
    # The tail counts little in erf itself; a part of its own keeps a few digits of its slope.
    report(
        "erfc 32",
        lambda t: mp.exp((t + 2) ** 2) * mp.erfc(t + 2),
        lambda t: (mp.erfc(t + 2) + mpf(1) / 3000) / (mp.exp((t + 2) ** 2) * mp.erfc(t + 2)),
        mpf(-1),
        mpf(2),
        11,
    )
    # lgamma(2 + t) = t * (1 + t) * q(t) for t in -1..1; the points of the fit are neither -1 nor 0.
    for bits, terms in ((32, 13), (64, 27)):
        report(
            f"lgamma {bits}",
            lambda t: mp.loggamma(2 + t) / (t * (1 + t)),
            lambda t: t * (1 + t) / mp.loggamma(2 + t),
            mpf(-1),
            mpf(1),
            terms,
        )


if __name__ == "__main__":
    main()
