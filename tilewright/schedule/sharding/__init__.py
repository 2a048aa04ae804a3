"""Several devices. In: a graph of values divided among devices. Out: nodes on one device each, copies between them."""
