"""Counts what a server does and shows it: declarations, the supervisor's registry, gauges read when asked, and TEI's
names."""
