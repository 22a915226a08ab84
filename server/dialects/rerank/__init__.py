"""The rerank routes of four families of clients: one handler, their bodies and answers."""
