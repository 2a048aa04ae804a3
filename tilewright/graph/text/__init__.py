"""Graphs as text and back."""
