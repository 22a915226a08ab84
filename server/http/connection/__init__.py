"""What a connection is made of beside the parser: clocks, limits on heads and trailers, flow control, refusals."""
