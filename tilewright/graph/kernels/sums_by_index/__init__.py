"""Kernels that add values to outputs which an index names."""
