"""The Fourier transform extension of the array API."""
