"""The graph before fusion. In: the nodes to realise. Out: equal nodes, with large reductions in parallel parts."""
