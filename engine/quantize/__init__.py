"""`embedline quantize`: linear layers' weights as FP8 with a scale for each block, on a CPU and without data."""
