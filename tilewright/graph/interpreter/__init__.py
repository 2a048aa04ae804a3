"""The interpreter: the meaning of graphs, with every op computed in Python and NumPy."""
