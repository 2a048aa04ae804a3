"""Bugs that tests plant in the package, in processes of their own."""
