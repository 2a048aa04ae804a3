"""Measurements of Tilewright, by itself and, in compare.py, beside other frameworks."""
