"""The gradient rule of every op."""
