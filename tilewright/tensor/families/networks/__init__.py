"""Families of neural networks: activations, convolutions, pooling, attention, losses, images."""
