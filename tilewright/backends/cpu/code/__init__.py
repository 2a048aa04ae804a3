"""The compilers that turn kernels into machine code: LLVM, the system's C compiler, and the loader of object files."""
