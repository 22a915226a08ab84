"""vLLM's own routes: scores, pooling, tokens, and what these share; and chats in the bodies of others."""
