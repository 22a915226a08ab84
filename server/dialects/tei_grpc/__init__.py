"""text-embeddings-inference's gRPC methods: one file for each group, its messages and its answers; see tei.proto."""
