"""What is counted and shown: declarations, the supervisor's registry, gauges read when asked, and TEI's names."""
