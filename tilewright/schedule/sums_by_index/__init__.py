"""Sums by index on cards. In: a reduction that compares an index with every output. Out: one over few terms each."""
