"""The network of a language model and its parts, from its configuration and its weights."""
