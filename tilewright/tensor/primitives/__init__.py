"""The operations that every family is written with: shape, arithmetic, reductions, creation, indexing."""
