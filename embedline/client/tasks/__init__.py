"""What calls ask for: for each task the bodies of its requests and how answers are read. Knows no connection."""
