"""Makes one row a sequence of token rows: poolings and the modules after them, numpy and torch side by side."""
