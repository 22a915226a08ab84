"""The choice of waiting sequences for each engine: a pure state machine without a clock, I/O, token ids or rows."""
