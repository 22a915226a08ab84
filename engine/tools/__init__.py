"""Tools that make new model folders: convert and quantize. They know no engine, and no engine imports them."""
