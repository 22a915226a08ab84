"""Requests and documents in Redis, for several servers on one queue. Every change is one Lua script."""
