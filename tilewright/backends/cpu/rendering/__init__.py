"""Programs as LLVM IR, and as C for the system's compiler."""
