"""BEAM: candidates of a kernel compiled, run and timed in worker processes."""
