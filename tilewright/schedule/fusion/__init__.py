"""What a kernel computes and what it loads. In: a prepared graph. Out: a `Plan` of stored nodes and their uses."""
