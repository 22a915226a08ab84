"""Who is let in: by the expected wait, the request's deadline, fair shares between API keys, and their ceilings."""
