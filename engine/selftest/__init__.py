"""What a loaded engine is tried on before it serves: sample sequences, row checks and the warm-up.

Knows the `Engine` protocol alone, no engine.
"""
