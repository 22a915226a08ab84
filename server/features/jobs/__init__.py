"""Work that nobody waits for: async requests with webhooks, files and batches, and the store that keeps them.

Knows no dialect and no HTTP route: it asks this very server as a client does.
"""
