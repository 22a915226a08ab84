"""Features: what a server can do besides answering requests for models. Each is a folder; the rest of the server
imports none of them."""
