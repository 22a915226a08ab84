"""`embedline doctor`: what this machine has, which engines can serve a model here, and why the others can't."""
