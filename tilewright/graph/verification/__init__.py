"""Whether a graph keeps the rules of its stage. Entry: `verify`."""
