"""One call of the client: its batches, what is tried again and when, and the threads that send them."""
