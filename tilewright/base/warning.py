"""Warnings of the package. In: nothing. Out: classes that `warnings.filterwarnings` can tell apart. A warning
means that the result is right but costs more than it needs to."""

from __future__ import annotations


class JitWarning(UserWarning):
    """A jitted function is traced at every call and never replayed; the message says why.

    Broken, the clock gives another number at each call, so nothing can be replayed::

        @jit
        def step(x): return x * time.time()

    Fixed, by giving it as an argument, in a tensor::

        @jit
        def step(x, now): return x * now
    """
