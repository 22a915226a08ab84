"""The store in a folder of this machine: SQLite in WAL mode, every commit synced, one process at a time."""
