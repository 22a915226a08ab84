"""The process that starts all others: what there will be (plan, topology), its children, their restarts, and readiness.

It owns the listening sockets, the shared page and the metrics registry. It answers no request but the monitor port's.
"""
