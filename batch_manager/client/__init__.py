"""A frontend's side of the batch managers. Imports nothing of theirs but messages."""
