"""Language models: files of weights, the network, text as tokens, generation and what serves it."""
