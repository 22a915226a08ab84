"""How files of weights are read."""
