"""Attacks from the network on a whole server, and what other clients notice of them."""
