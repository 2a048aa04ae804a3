"""Devices, buffers and caches: what runs kernels and holds their data. Knows no backend by name."""
