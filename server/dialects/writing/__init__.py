"""What encoders share: rows as JSON, base64 or bytes, ragged answers, scores with labels."""
