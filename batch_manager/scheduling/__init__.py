"""Which waiting sequences go to which engine when: a pure state machine without a clock, I/O, token ids or rows."""
