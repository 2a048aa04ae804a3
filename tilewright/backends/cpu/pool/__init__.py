"""The thread pool that runs kernels: its LLVM IR, and the calls into it from Python."""
