"""`embedline bench`: its options. The work is in embedline.bench."""
