"""Checks what config.json says before anything is loaded: its keys, their values, and the angles of positions."""
