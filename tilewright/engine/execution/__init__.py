"""Running a schedule on buffers: memory, launches, checks, and calls that are being traced."""
