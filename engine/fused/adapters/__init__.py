"""From a checkpoint's configuration and names to ours, a file for each kind of architecture."""
