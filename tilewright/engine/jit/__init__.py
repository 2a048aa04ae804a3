"""jit: tracing a call, guards on what it read, and replaying what it launched."""
