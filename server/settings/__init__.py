"""Flags, environment variables, the config file and keys: from text to frozen settings. Knows no HTTP."""
