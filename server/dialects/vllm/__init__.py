"""vLLM's own routes: scores, pooling, tokens; and chats in the bodies of others."""
