"""Measurements of Tilewright by itself; shared comparisons with other frameworks are made by compare.py."""
