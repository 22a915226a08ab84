"""The client: many texts in many requests at once, into numpy arrays. Knows servers by HTTP alone."""
