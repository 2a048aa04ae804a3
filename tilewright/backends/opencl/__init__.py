"""The OPENCL device: C text compiled by the driver that is installed, run on its queues through pyopencl."""
