"""The DISK device: files as memory, read and written in place."""
