"""The edge: HTTP, flags, health, and the supervisor that starts and stops every process. Imports all the others."""
