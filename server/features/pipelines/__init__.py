"""Pipelines of --pipelines: their file, the process that runs it, and a frontend's connection to that process."""
