"""Our client beside those of others."""
