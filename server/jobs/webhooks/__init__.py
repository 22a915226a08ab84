"""Webhooks: who signs, where they may go, one attempt, and the retries of hours. Knows no HTTP route and no dialect."""
