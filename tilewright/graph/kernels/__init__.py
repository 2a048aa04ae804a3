"""Nodes of kernels: the language for custom kernels, kernels written in it, threads, tiles and levels of sums."""
