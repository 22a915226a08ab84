"""Where requests and documents lie: one interface, and SQLite or Redis behind it. Runs and sends nothing."""
