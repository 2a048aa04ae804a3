"""From a graph to a schedule with its kernels: binding to parameters, and the caches of schedules."""
