"""What only kernels have: the language users write them in, threads, tiles and levels."""
