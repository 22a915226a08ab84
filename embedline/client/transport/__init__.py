"""Requests over HTTP/1.1: connections, base URLs, deadlines, hedging. Knows no route and no batch."""
