"""Waiting sequences -> packed batches -> answers. Knows sequences, deadlines, classes; of the engine only its types."""
