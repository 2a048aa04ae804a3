"""Kernels as nodes. Here: custom kernels, constructors, and facts of any kernel; in the folders: whole kernels."""
