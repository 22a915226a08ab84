"""Which processes a server with these settings has, and what each is told: models, engines, memory, sockets."""
