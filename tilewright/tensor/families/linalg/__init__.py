"""Families of linear algebra: products, decompositions, solvers, norms."""
