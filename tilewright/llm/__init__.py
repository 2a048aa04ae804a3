"""Language models: files of weights, the network, generation and what serves it."""
