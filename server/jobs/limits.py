"""How much one call between a frontend and the jobs process carries."""

CHUNK_BYTES = 1 << 20  # the most of a file, in either direction
PIECE_BYTES = 256 * 1024  # of a file or a result that lies near: its client may not read it, or stop sending it
MAX_BODY_BYTES = 4 << 20  # of one async request: more belongs into a batch
