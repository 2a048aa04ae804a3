"""One graph of one node type: the node, its ops and their specs, building, walking, rewriting, checking and showing
it."""
