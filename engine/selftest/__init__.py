"""Tests a loaded engine before it serves: sample sequences, the comparison of rows and the warm-up.

Only the `Engine` protocol is known here. What only one engine needs belongs to that engine's folder.
"""
