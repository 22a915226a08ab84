"""The process that answers requests: its start, its state, the request log. HTTP itself is in server/http."""
