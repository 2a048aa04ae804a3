"""Facts about a kernel that transforms and heuristics ask for: dependences, versions of memory, groups of terms."""
