"""Long texts: scanned slice by slice, and shortened to what can matter."""
