"""NVIDIA cards: the driver API and NVRTC, through cuda-bindings or the libraries on the system."""
