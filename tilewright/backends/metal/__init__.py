"""METAL: kernels in the Metal Shading Language. Its text is tested; it has not been run on a machine of Apple's yet."""
