"""Readers that decoders share: JSON bodies, the fields that several dialects have, texts and token ids. Knows no
route."""
