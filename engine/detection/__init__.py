"""What a model folder's files make of a model: its task, its heads, and what the edge does with its scores."""
