"""From the graph of what must be realised to kernels in order. Entry: `pipeline.schedule`."""
