"""Makes the rows that users get from the last hidden states of tokens: poolings, the modules after them, and heads."""
