"""The PYTHON device. In: a linear program and buffers. Out: the buffers, changed, or the rule the program broke.
Computed with NumPy and checked at every access, it is the definition that every other backend is compared with."""
