"""Complex tensors, and Fourier transforms of tensors."""
