"""The gRPC port of a frontend: HTTP/2 to a call and back, text-embeddings-inference's methods, health, reflection.

Imported only where --grpc-port is given: its packages are those of an extra.
"""
