"""Kernels of attention: in tiles of a tensor core, in blocks of a cache, by work-groups, and of one query."""
