"""WEBGPU: kernels as WGSL, run through wgpu on whatever the system has: Vulkan, Metal or Direct3D 12."""
