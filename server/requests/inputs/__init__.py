"""A request's texts and token ids before an engine gets them: prompts, given ids, mixed lists, failed items."""
