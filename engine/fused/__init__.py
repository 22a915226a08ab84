"""The `fused` engine: two families of transformers on packed sequences, at the speed of a GPU's matrix units."""
