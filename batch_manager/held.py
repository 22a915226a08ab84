"""What the batch manager's process keeps of a request besides its lengths: who asked, its ids, its rows so far."""

from collections.abc import Mapping

from batch_manager.answers import Assembly
from batch_manager.batches import Batch, Request, Slice
from batch_manager.messages import Submission
from wire.connection import Connection
from wire.frames import Buffer


class HeldRequest:
    """One request of a frontend until it is answered: its ids, its rows so far, its times in seconds."""

    __slots__ = ("assembly", "compute_seconds", "connection", "frame_id", "queue_seconds", "request", "submission")

    def __init__(self, connection: Connection, frame_id: int, *, submission: Submission, request: Request) -> None:
        self.connection = connection
        self.frame_id = frame_id
        self.submission = submission
        self.request = request
        self.assembly = Assembly(request.num_seqs)
        self.queue_seconds = 0.0
        self.compute_seconds = 0.0

    def cut(self, ids: Buffer, piece: Slice) -> Buffer:
        """The part of an int32 buffer over the whole request that belongs to a slice of it; a view."""
        if piece.num_tokens == self.request.num_tokens:
            return ids
        cu_seqlens = self.request.cu_seqlens
        return memoryview(ids)[4 * cu_seqlens[piece.start] : 4 * cu_seqlens[piece.stop]]


def pack(batch: Batch, held: Mapping[int, HeldRequest]) -> tuple[list[Buffer], list[Buffer]]:
    """The token ids and the token types of a batch in pieces, not copied; no types where all are zero."""
    packed = [(held[piece.request.request_id], piece) for piece in batch.slices]
    token_ids = [one.cut(one.submission.token_ids, piece) for one, piece in packed]
    if not any(one.submission.token_type_ids for one, _ in packed):
        return token_ids, []
    return token_ids, [
        one.cut(one.submission.token_type_ids, piece) if one.submission.token_type_ids else bytes(4 * piece.num_tokens)
        for one, piece in packed
    ]
