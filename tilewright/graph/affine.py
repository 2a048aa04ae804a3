"""Affine forms. In: an integer node. Out: c0 + sum(ci * atom_i), and back to a node with its terms in one fixed order.
Index maths, masks and the emitter's base-and-offset addressing all read this form; it is kept on the node."""

from __future__ import annotations

from zlib import crc32

from tilewright.base.digests import blake2b
from tilewright.base.dtype import DType, dtypes, wrap_int
from tilewright.base.records import NamedTuple
from tilewright.graph.ops import Ops
from tilewright.graph.uop import UOp

# A sum of more terms is an atom of a larger sum, so that the cost of a node does not grow with the length of a chain.
TERM_LIMIT = 32

_LINEAR = frozenset({Ops.ADD, Ops.SUB, Ops.NEG, Ops.MUL, Ops.SHL})
OrderKey = tuple[tuple[int, ...], bytes]
OUTLINE_BYTES = 4  # of a digest without sizes and strides


class Affine(NamedTuple):
    """constant + sum of coefficient * atom. No coefficient is 0. The dictionary is shared: do not change it."""

    terms: dict[UOp, int]
    constant: int

    @property
    def bounds(self) -> tuple[int, int]:
        """The least and the greatest value, from the bounds of the atoms."""
        low = high = self.constant
        for atom, coefficient in self.terms.items():
            atom_low, atom_high = atom.bounds
            if coefficient >= 0:
                low += coefficient * int(atom_low)
                high += coefficient * int(atom_high)
            else:
                low += coefficient * int(atom_high)
                high += coefficient * int(atom_low)
        return (low, high)

    def plus(self, other: Affine, scale: int = 1) -> Affine:
        """self + scale * other."""
        terms = dict(self.terms)
        for atom, coefficient in other.terms.items():
            total = terms.get(atom, 0) + scale * coefficient
            if total:
                terms[atom] = total
            else:
                terms.pop(atom, None)
        return Affine(terms, self.constant + scale * other.constant)

    def scaled(self, scale: int) -> Affine:
        if scale == 0:
            return Affine({}, 0)
        return Affine({atom: scale * coefficient for atom, coefficient in self.terms.items()}, scale * self.constant)


def affine(node: UOp) -> Affine:
    """The affine form whose value is the node's, over the integers. A fixed-width integer that may wrap is its own
    form, and a multiple of a sum is an atom there."""
    form = ring_form(node)
    if node.dtype is dtypes.index or node in form.terms:
        return form
    cache = node.cache
    if "affine-fits" not in cache:
        cache["affine-fits"] = fits(form, node.dtype)
    return form if cache["affine-fits"] else Affine({node: 1}, 0)


def fits(form: Affine, dtype: DType) -> bool:
    """Whether every value of the form is a value of the dtype, so that computing it there does not wrap."""
    if dtype is dtypes.index:
        return True
    low, high = form.bounds
    return bool(dtype.min <= low and high <= dtype.max)


def ring_form(node: UOp) -> Affine:
    """The form modulo 2**bits of the dtype: what reordering a sum may use even where it wraps. Exact for indices."""
    cache = node._cache
    if cache is None or "affine" not in cache:
        if is_atom(node):
            return Affine({node: 1}, 0)
        if node.op is Ops.CONST:
            return Affine({}, node.arg)
        _work_out(node)
        cache = node.cache
    form: Affine | None = cache["affine"]
    # A node that turned out to be its own atom holds None and not itself, which would be a cycle of references.
    return Affine({node: 1}, 0) if form is None else form


def is_atom(node: UOp) -> bool:
    """Whether a node is an atom by its op alone."""
    if node.op is Ops.CONST:
        return isinstance(node.arg, float | bool)
    return node.op not in _LINEAR or not node.dtype.is_int


def _work_out(node: UOp) -> None:
    """Computes the form of the node and of all nodes below it that are part of it, without recursion, and keeps
    them."""
    stack = [node]
    while stack:
        top = stack[-1]
        cache = top.cache
        if "affine" in cache:
            stack.pop()
            continue
        waiting = len(stack)
        for src in top.src:
            if src.op in _LINEAR and (src._cache is None or "affine" not in src._cache) and src.dtype.is_int:
                stack.append(src)
        if len(stack) == waiting:
            cache["affine"] = _combine(top)
            stack.pop()


def _add_into(terms: dict[UOp, int], node: UOp, scale: int) -> int:
    """Adds scale * node to the terms and returns what it adds to the constant. Its form is worked out already."""
    op = node.op
    if op is Ops.CONST:
        return scale * int(node.arg)
    form: Affine | None = None
    if op in _LINEAR and node._cache is not None:
        form = node._cache.get("affine")
    if form is None:
        total = terms.get(node, 0) + scale
        if total:
            terms[node] = total
        else:
            del terms[node]
        return 0
    for atom, count in form.terms.items():
        total = terms.get(atom, 0) + scale * count
        if total:
            terms[atom] = total
        else:
            del terms[atom]
    return scale * form.constant


def _combine(node: UOp) -> Affine | None:
    """The form of a linear op from the forms of its sources; None where the node is its own atom."""
    op = node.op
    dtype = node.dtype
    src = node.src
    terms: dict[UOp, int] = {}
    if op is Ops.ADD:
        constant = _add_into(terms, src[0], 1) + _add_into(terms, src[1], 1)
    elif op is Ops.MUL:
        left, right = src
        if left.op is Ops.CONST:
            left, right = right, left
        if right.op is not Ops.CONST:
            return None
        constant = _add_into(terms, left, right.arg) if right.arg else 0
        # Distributing over a sum costs an operation per term, which pays for index maths alone.
        if dtype is not dtypes.index and len(terms) + bool(constant) > 1:
            return None
    elif op is Ops.SUB and not dtype.is_unsigned:
        constant = _add_into(terms, src[0], 1) + _add_into(terms, src[1], -1)
    elif op is Ops.NEG and not dtype.is_unsigned:
        constant = _add_into(terms, src[0], -1)
    elif op is Ops.SHL and dtype is dtypes.index and src[1].is_const and 0 <= src[1].arg < 64:
        constant = _add_into(terms, src[0], 1 << src[1].arg)
    else:
        return None
    if len(terms) > TERM_LIMIT:
        return None
    form = Affine(terms, constant)
    return form if dtype is dtypes.index else _wrapped(form, dtype)


def _wrapped(form: Affine, dtype: DType) -> Affine:
    """The form with its numbers as the dtype holds them."""
    terms = {}
    for atom, coefficient in form.terms.items():
        wrapped = wrap_int(coefficient, dtype)
        if wrapped:
            terms[atom] = wrapped
    return Affine(terms, wrap_int(form.constant, dtype))


def from_affine(form: Affine, dtype: DType = dtypes.index) -> UOp:
    """The canonical node of a form: a left-leaning sum, terms by the innermost axis they depend on, constant last.
    Terms of outer axes come first, so that what an inner loop does not change is one node, computed outside of it."""
    terms = form.terms
    if len(terms) > 1:
        terms = {atom: terms[atom] for atom in sorted(terms, key=order_key)}
    total: UOp | None = None
    for atom, coefficient in terms.items():
        term = atom
        if coefficient != 1:
            term = UOp(Ops.MUL, dtype, (atom, _number(dtype, coefficient)))
        total = term if total is None else UOp(Ops.ADD, dtype, (total, term))
    if total is None:
        return _number(dtype, form.constant)
    if form.constant:
        total = UOp(Ops.ADD, dtype, (total, _number(dtype, form.constant)))
    return total


# Sizes and strides recur; a lookup here takes a tenth of the time of making the node.
_indices: dict[int, UOp] = {value: UOp(Ops.CONST, dtypes.index, (), value) for value in range(-32, 257)}


def _number(dtype: DType, value: int) -> UOp:
    if dtype is dtypes.index:
        return _indices.get(value) or UOp(Ops.CONST, dtype, (), value)
    return UOp(Ops.CONST, dtype, (), wrap_int(value, dtype))


def coefficient(node: UOp, atom: UOp) -> int:
    """The coefficient of the atom in the node's affine form; 0 where it is not a term of it."""
    return affine(node).terms.get(atom, 0)


# ---------------------------------------------------------------- the order of terms


def order_key(node: UOp) -> OrderKey:
    """A key that orders nodes the same way in every process: the innermost axis of the node, then a digest of what it
    computes whatever its sizes and strides are, then one of all of it. So the terms of a sequence come in the same
    order at every length. Nodes that differ in nothing but which parameters they load are equal to it, and stay in the
    order they are in."""
    cache = node._cache
    if cache is not None:
        key: OrderKey | None = cache.get("order")
        if key is not None:
            return key
    innermost = max([axis.arg.id for axis in node.ranges], default=())
    key = node.cache["order"] = (innermost, _digests(node))
    return key


def digest(node: UOp) -> bytes:
    """Eight bytes that depend on what the node computes and on nothing else. The number of a parameter or
    of a check is not part of it: the same step on other memory comes out in the same order."""
    return _digests(node)[OUTLINE_BYTES:]


def _digests(node: UOp) -> bytes:
    """The digest of the node without its sizes and strides, and after that the one with them."""
    stack = [node]
    while True:
        top = stack[-1]
        known = top._cache.get("digest") if top._cache is not None else None
        if known is None:
            waiting = len(stack)
            below = []
            for src in top.src:
                part = src._cache.get("digest") if src._cache is not None else None
                if part is None:
                    stack.append(src)
                else:
                    below.append(part)
            if len(stack) > waiting:
                continue
            known = top.cache["digest"] = _digests_of(top, below)
        stack.pop()
        if not stack:
            return known


def _digests_of(node: UOp, below: list[bytes]) -> bytes:
    text = _text_of(node).encode()
    outline = text
    if node.op is Ops.PARAM or (node.op is Ops.CONST and node.dtype is dtypes.index):
        outline = f"{node.op.name} {node.dtype.name}".encode()
    outline += b"".join([part[:OUTLINE_BYTES] for part in below])
    whole = text + b"".join([part[OUTLINE_BYTES:] for part in below])
    return crc32(outline).to_bytes(OUTLINE_BYTES, "big") + blake2b(whole, digest_size=8).digest()


def _text_of(node: UOp) -> str:
    if node.arg is None:
        return f"{node.op.name} {node.dtype.name}"
    if node.op is Ops.RANGE:
        # Said by hand: the text of a record with an enum in it takes ten times as long.
        return f"RANGE {node.arg.id} {node.arg.kind.value}"
    if node.op is Ops.PARAM:
        return f"PARAM {node.dtype.name} {node.arg.size}"
    if node.op is Ops.CHECK:
        return f"CHECK {node.dtype.name} {node.arg.size} {node.arg.wraps}"
    return f"{node.op.name} {node.dtype.name} {node.arg!r}"
