"""Where requests and documents lie: one interface, and SQLite behind it. Runs and sends nothing."""
