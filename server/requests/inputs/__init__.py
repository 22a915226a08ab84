"""What becomes of a request's texts and token ids before they are tokenized: prompts, given ids, mixed lists."""
