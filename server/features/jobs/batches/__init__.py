"""OpenAI's batches: the lines of a file are requests, and each gets one line of output. Knows no dialect."""
