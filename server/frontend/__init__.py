"""The process that answers requests: its start, request metrics and log. HTTP itself is in server/http."""
