"""Waiting sequences -> packed batches -> answers, and the side of a frontend that asks for it (`client`).

Knows sequences, deadlines, classes; of the engine only its types.
"""
