"""The listening sockets of the server: where they come from, and how they end without losing a connection."""
