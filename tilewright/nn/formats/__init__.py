"""File formats of weights and data. In: paths. Out: tensors over memory-mapped files, or an error that names the file.
Every reader checks what it reads before it makes the first tensor, and none of them runs anything a file says."""
