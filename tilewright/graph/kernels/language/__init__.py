"""The language in which users and this package write custom kernels."""
