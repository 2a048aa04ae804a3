"""Which buffers hold values, which tensors are alive to read them, and which of their reads an update must preserve."""
