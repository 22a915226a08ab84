"""The store of requests and documents: one interface, and SQLite or Redis behind it. Runs and sends nothing."""
