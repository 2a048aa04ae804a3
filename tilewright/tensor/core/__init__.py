"""What a tensor is: its node, its memory, its gradient, conversion from and to the host."""
