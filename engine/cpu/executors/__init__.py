"""OpenVINO, which converts and compiles a model, and int8 weights for it. Imports no torch."""
