"""What the transformers engine makes of token rows: scores, labels, sparse weights, token vectors."""
