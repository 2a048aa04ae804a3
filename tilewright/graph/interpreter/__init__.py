"""What a graph means: every op computed in Python and NumPy."""
