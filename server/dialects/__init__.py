"""What the server's clients speak: for each dialect a decoder and an encoder, nothing more."""
