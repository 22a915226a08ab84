"""Raw scores of each token, by a head of the library's: token classifiers.

Shapes: T tokens of all sequences, D numbers a row, L raw scores.
"""

from torch import Tensor
from transformers import PreTrainedModel

from engine.model.tasks import TokenScores
from engine.rows.transfer import on_device
from engine.transformers.heads.library_head import LibraryHead
from engine.transformers.heads.maker import Maker
from engine.transformers.trial import Trial
from engine.types import Batch, ModelError, OutputKind, Rows


def token_scores(whole: PreTrainedModel, head: TokenScores, trial: Trial) -> tuple[Maker, str]:
    """The maker of TOKEN_LOGITS, and a line about it. Raises ModelError.

    It does not refer to `whole`, whose layers may be changed afterwards.
    """
    num_scores = trial.scores[OutputKind.TOKEN_LOGITS].values.shape[1]
    if num_scores != len(head.labels):
        raise ModelError(f"config.json names {len(head.labels)} labels, and the head gives {num_scores} scores")
    library_head = LibraryHead(whole)
    return _TokenScores(library_head), f"scores: the head of {library_head.name} on each token's row"


class _TokenScores:
    """See Maker."""

    def __init__(self, library_head: LibraryHead) -> None:
        self._library_head = library_head

    def __call__(self, token_rows: Tensor, batch: Batch) -> Rows:
        token_ids = on_device(batch.token_ids, token_rows.device)
        scores = self._library_head(token_rows[None], token_ids[None])[0]
        return Rows(scores.cpu().numpy(), batch.cu_seqlens)
