"""The CPU device: LLVM IR compiled in this process, run on a pool of threads."""
