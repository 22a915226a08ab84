"""Code that all processes share: frames, connections, control channel, metrics, page. Imports no other package."""
