"""`embedline quantize`: a folder's linear layers as block FP8, on the CPU, in bounded memory."""
