"""What decoders share: JSON bodies, texts, token ids. Knows no dialect's fields."""
