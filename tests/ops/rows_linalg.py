"""Rows of the op table: products, attention, decompositions."""

from __future__ import annotations

import math

import numpy as np
from scipy import special

from tests.ops.rows import INTS, WIDE_FLOATS, Input, Row

PRODUCTS = [
    Row(
        "dot",
        lambda x, y: x.dot(y),
        np.matmul,
        (Input((3, 4)), Input((4, 2))),
        INTS + WIDE_FLOATS,
        torch=lambda t, x, y: x @ y,
    ),
    Row("dot", lambda x, y: x.dot(y), np.matmul, (Input((4,)), Input((4,))), label="vectors"),
    Row(
        "dot",
        lambda x, y: x.dot(y),
        np.matmul,
        (Input((2, 1, 3, 4)), Input((3, 4, 2))),
        label="batches",
        torch=lambda t, x, y: x @ y,
    ),
    Row(
        "dot",
        lambda x, y: x.dot(y),
        np.matmul,
        (Input((3, 0)), Input((0, 2))),
        gradient=False,
        label="empty",
        torch=lambda t, x, y: x @ y,
    ),
    Row("matmul", lambda x, y: x.matmul(y), np.matmul, (Input((2, 3, 4)), Input((4,))), INTS + WIDE_FLOATS),
    Row(
        "matmul",
        lambda x, y: x.matmul(y, reverse=True),
        lambda x, y: y @ x,
        (Input((3, 4)), Input((2, 3))),
        label="reverse",
        torch=lambda t, x, y: y @ x,
    ),
    Row(
        "matmul",
        lambda x, y: x.matmul(y, dtype="float32"),
        np.matmul,
        (Input((3, 4)), Input((4, 2))),
        ("float16", "bfloat16"),
        False,
        "float32",
        "dtype",
        None,
    ),
    Row(
        "linear",
        lambda x, w, b: x.linear(w, b),
        lambda x, w, b: x @ w + b,
        (Input((2, 3)), Input((3, 4)), Input((4,))),
        torch=lambda t, x, w, b: x @ w + b,
    ),
    Row(
        "einsum",
        lambda x, y: type(x).einsum("ij,kj->ki", x, y),
        lambda x, y: np.einsum("ij,kj->ki", x, y),
        (Input((3, 4)), Input((2, 4))),
        INTS + WIDE_FLOATS,
        torch=lambda t, x, y: t.einsum("ij,kj->ki", x, y),
    ),
    Row(
        "einsum",
        lambda x: type(x).einsum("iji->j", x),
        lambda x: np.einsum("iji->j", x),
        (Input((3, 2, 3)),),
        label="diagonal",
        torch=lambda t, x: t.einsum("iji->j", x),
    ),
    Row(
        "einsum",
        lambda x, y: type(x).einsum("...ij,...jk", x, y),
        np.matmul,
        (Input((2, 1, 3, 4)), Input((2, 4, 2))),
        label="ellipsis",
        torch=lambda t, x, y: t.einsum("...ij,...jk", x, y),
    ),
    Row(
        "einsum",
        lambda x, y, z: type(x).einsum("ab,bc,cd->ad", x, y, z),
        lambda x, y, z: x @ y @ z,
        (Input((2, 3)), Input((3, 4)), Input((4, 2))),
        label="three",
        torch=lambda t, x, y, z: t.einsum("ab,bc,cd->ad", x, y, z),
    ),
    Row(
        "einsum",
        lambda x: type(x).einsum("ij->", x),
        np.sum,
        (Input((3, 4)),),
        label="sum",
        torch=lambda t, x: t.einsum("ij->", x),
    ),
    Row(
        "einsum",
        lambda x: type(x).einsum("ba", x),
        np.transpose,
        (Input((3, 4)),),
        label="sorted",
        torch=lambda t, x: t.einsum("ba", x),
    ),
]


def attention(q, k, v, mask=None, causal=False):
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])
    if causal:
        mask = np.tril(np.ones(scores.shape[-2:], bool))
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
    return special.softmax(scores, -1) @ v


HEADS = (Input((2, 2, 3, 4)), Input((2, 2, 5, 4)), Input((2, 2, 5, 4)))

ATTENTION = [
    Row(
        "scaled_dot_product_attention",
        lambda q, k, v: q.scaled_dot_product_attention(k, v),
        attention,
        HEADS,
        torch=lambda t, *given: t.nn.functional.scaled_dot_product_attention(*given),
    ),
    Row(
        "scaled_dot_product_attention",
        lambda q, k, v: q.scaled_dot_product_attention(k, v, is_causal=True),
        lambda q, k, v: attention(q, k, v, causal=True),
        (Input((2, 3, 4)),) * 3,
        label="causal",
        torch=lambda t, *given: t.nn.functional.scaled_dot_product_attention(*given, is_causal=True),
    ),
    Row(
        "scaled_dot_product_attention",
        lambda q, k, v, m: q.scaled_dot_product_attention(k, v, m),
        attention,
        (*HEADS, Input((3, 5))),
        label="mask",
        torch=lambda t, *given: t.nn.functional.scaled_dot_product_attention(*given),
    ),
    Row(
        "scaled_dot_product_attention",
        lambda q, k, v: q.scaled_dot_product_attention(k, v, enable_gqa=True),
        lambda q, k, v: attention(q, np.repeat(k, 2, 1), np.repeat(v, 2, 1)),
        (Input((2, 4, 3, 4)), Input((2, 2, 5, 4)), Input((2, 2, 5, 4))),
        label="gqa",
        torch=lambda t, *given: t.nn.functional.scaled_dot_product_attention(*given, enable_gqa=True),
    ),
]

# The signs of the factors of an SVD are free, so products of them are compared.
DECOMPOSED = [
    Row(
        "qr",
        lambda x: x.qr(),
        np.linalg.qr,
        (Input((4, 3)),),
        ("float64", "float32"),
        result=("same",) * 2,
        torch=lambda t, x: t.linalg.qr(x),
    ),
    Row(
        "qr",
        lambda x: x.qr(),
        np.linalg.qr,
        (Input((2, 3, 4)),),
        ("float64", "float32"),
        result=("same",) * 2,
        label="wide",
        torch=lambda t, x: t.linalg.qr(x),
    ),
    Row(
        "svd",
        lambda x: x.svd(False)[1],
        lambda x: np.linalg.svd(x, compute_uv=False),
        (Input((4, 3)),),
        ("float64", "float32"),
        torch=lambda t, x: t.linalg.svdvals(x),
    ),
    Row(
        "svd",
        lambda x: (lambda u, s, v: ((u * s.unsqueeze(-2)) @ v, u.T @ u, v @ v.T))(*x.svd(False)),
        lambda x: (x, np.eye(3), np.eye(3)),
        (Input((4, 3)),),
        ("float64", "float32"),
        result=("same",) * 3,
        label="product",
        torch=None,
    ),
    Row(
        "svd",
        lambda x: (
            lambda u, s, v: ((u * s.unsqueeze(-2)) @ v[:, :3], u @ u.transpose(-1, -2), v @ v.transpose(-1, -2))
        )(*x.svd()),
        lambda x: (x, np.broadcast_to(np.eye(3), (2, 3, 3)), np.broadcast_to(np.eye(5), (2, 5, 5))),
        (Input((2, 3, 5)),),
        ("float64", "float32"),
        False,
        ("same",) * 3,
        "full",
        None,
    ),
    Row(
        "svd",
        lambda x: (lambda u, s, v: (s, u.T @ u, v @ v.T))(*x.svd()),
        lambda x: (np.array([math.sqrt(28), 0, 0]), np.eye(3), np.eye(3)),
        (Input(values=[[1, 1, 0], [2, 2, 0], [3, 3, 0]]),),
        ("float64", "float32"),
        False,
        ("same",) * 3,
        "rank one",
        None,
    ),
]

ROWS = PRODUCTS + ATTENTION + DECOMPOSED
