"""Views. In: movement ops of a tensor graph. Out: fewer of them: neighbours of one kind joined, idle ones dropped.
Used before scheduling, so that equal views are one node and an index has less to undo."""

from __future__ import annotations

from tilewright.graph.ops import Ops
from tilewright.graph.pattern import Rule, RuleSet, op, var
from tilewright.graph.uop import UOp


def keeps_shape(node: UOp, x: UOp) -> bool:
    return node.shape == x.shape


def join_permutes(node: UOp, inner: UOp, x: UOp) -> UOp:
    return UOp(Ops.PERMUTE, node.dtype, (x,), tuple([inner.arg[axis] for axis in node.arg]))


def join_pads(node: UOp, inner: UOp, x: UOp) -> UOp:
    pairs = [(a + c, b + d) for (a, b), (c, d) in zip(inner.arg, node.arg, strict=True)]
    return UOp(Ops.PAD, node.dtype, (x,), tuple(pairs))


def join_shrinks(node: UOp, inner: UOp, x: UOp) -> UOp:
    pairs = [(start + low, start + high) for (start, _), (low, high) in zip(inner.arg, node.arg, strict=True)]
    return UOp(Ops.SHRINK, node.dtype, (x,), tuple(pairs))


def join_flips(node: UOp, inner: UOp, x: UOp) -> UOp:
    axes = tuple(sorted(set(node.arg) ^ set(inner.arg)))
    return UOp(Ops.FLIP, node.dtype, (x,), axes) if axes else x


def shrink_padding_away(node: UOp, inner: UOp, x: UOp) -> UOp | None:
    """shrink(pad(x)) that takes exactly the padding off again is x."""
    kept = tuple([(before, before + size) for (before, _), size in zip(inner.arg, x.shape, strict=True)])
    return x if kept == node.arg else None


def permute_as_reshape(node: UOp, x: UOp) -> UOp | None:
    """A permutation that only moves axes of size 1 keeps the elements in their order."""
    moved = [axis for axis in node.arg if x.shape[axis] != 1]
    return UOp(Ops.RESHAPE, node.dtype, (x,), node.shape) if moved == sorted(moved) else None


def drop_flipped_ones(node: UOp, x: UOp) -> UOp | None:
    axes = tuple([axis for axis in node.arg if x.shape[axis] != 1])
    if axes == tuple(node.arg):
        return None
    return UOp(Ops.FLIP, node.dtype, (x,), axes) if axes else x


x = var("x")


def _join(name: str, of: object, result: object) -> Rule:
    return Rule(name, op(of, op(of, x, name="inner"), name="node"), result)  # type: ignore[arg-type]


MOVEMENT_RULES = RuleSet(
    "movement",
    [
        Rule(
            "view-of-the-same-shape",
            op((Ops.RESHAPE, Ops.EXPAND, Ops.PAD, Ops.SHRINK), x, name="node"),
            x,
            when=keeps_shape,
        ),
        Rule(
            "permute-in-order",
            op(Ops.PERMUTE, x, name="node"),
            x,
            when=lambda node: tuple(node.arg) == tuple(range(len(node.arg))),
        ),
        Rule("flip-nothing", op(Ops.FLIP, x, name="node"), drop_flipped_ones),
        _join(
            "reshape-of-reshape",
            Ops.RESHAPE,
            lambda node, x: UOp(Ops.RESHAPE, node.dtype, (x,), node.arg),
        ),
        _join("expand-of-expand", Ops.EXPAND, lambda node, x: UOp(Ops.EXPAND, node.dtype, (x,), node.arg)),
        _join("permute-of-permute", Ops.PERMUTE, join_permutes),
        _join("pad-of-pad", Ops.PAD, join_pads),
        _join("shrink-of-shrink", Ops.SHRINK, join_shrinks),
        _join("flip-of-flip", Ops.FLIP, join_flips),
        Rule("shrink-of-pad", op(Ops.SHRINK, op(Ops.PAD, x, name="inner"), name="node"), shrink_padding_away),
        Rule("permute-of-ones", op(Ops.PERMUTE, x, name="node"), permute_as_reshape),
        Rule(
            "contiguous-twice",
            op(Ops.CONTIGUOUS, op(Ops.CONTIGUOUS, name="inner")),
            lambda inner: inner,
        ),
    ],
    pure=True,
)
