"""From a plan to items. In: a `Plan`. Out: kernels and copies in order, over slots of memory."""
