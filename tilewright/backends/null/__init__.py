"""The NULL device: every stage up to the text of a kernel, and then nothing is run."""
