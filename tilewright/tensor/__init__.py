"""What the user writes: `Tensor` and its methods, one mixin per family of operations, each building graph nodes."""
