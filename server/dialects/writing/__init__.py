"""What dialects share on the way out: rows as JSON, base64 or bytes, ragged answers, scores with labels."""
