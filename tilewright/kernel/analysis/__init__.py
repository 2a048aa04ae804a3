"""Facts about a kernel that transforms and templates ask for: dependences, versions of memory, groups of terms."""
