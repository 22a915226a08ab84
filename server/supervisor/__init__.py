"""The process that starts all others: plans, children, their restarts, readiness, and the end of the server.

It owns the listening sockets, the shared page and the metrics registry. It answers no request but the monitor port's.
"""
