"""One graph of one node type: the node, its ops and their specs, building, walking, rewriting, checking and showing
it."""

import tilewright.graph.kernels.language.language  # noqa: F401 - gives `UOp` the methods of custom kernels
