"""Families of tensor operations that are siblings: each stands on the same base and none sees another."""
