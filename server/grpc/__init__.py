"""The gRPC port of a frontend: HTTP/2 to a call and back, health, reflection.

Imported only where --grpc-port is given: its packages are those of an extra.
"""
