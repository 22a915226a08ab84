"""From token rows to one row a sequence: poolings and the modules after them, numpy and torch side by side."""
