"""Weights that stay quantised in memory: the block formats of GGUF, and products with them."""
