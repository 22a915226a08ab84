"""What dialects share on the way in: JSON bodies, texts, token ids. Knows no dialect's fields."""
