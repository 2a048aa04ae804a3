"""Kernels of prefix sums and of what else runs along an axis."""
