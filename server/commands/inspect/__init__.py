"""`embedline inspect`: what is known of a model before it is loaded, and which file or flag says so."""
