"""Programs as text in the dialects of C that OpenCL, CUDA, HIP, Metal, WGSL and C compilers take."""
