"""From a kernel's graph to a loaded binary: the stages in order, caches on disk and in the process, search."""
