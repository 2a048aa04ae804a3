"""File formats of weights and data. In: paths. Out: tensors over memory-mapped files, or an error that names the file.
Every reader checks a file before it makes the first tensor, and none executes code of a file."""
