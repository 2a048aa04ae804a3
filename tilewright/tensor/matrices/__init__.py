"""Kernels of linear algebra: each factorisation is one custom kernel with serial loops inside, over a batch of
matrices."""
