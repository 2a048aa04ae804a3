"""Passes before any opt: accumulators become reductions, loops are merged and split."""
