"""Families of tensor operations. They are siblings over one base class and do not import each other."""
