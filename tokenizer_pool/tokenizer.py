"""Texts to token ids, exactly as sentence-transformers gives them. Knows one model; nothing of queues or sockets."""

import logging
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tokenizers

from tokenizer_pool.loading import TokenizerError, load
from tokenizer_pool.messages import Refusal, TextRefused, TokenizedPiece, TokenizerSpec, Truncation

_DIRECTIONS = {Truncation.RIGHT: "right", Truncation.LEFT: "left"}

logger = logging.getLogger("embedline.tokenizer_pool")


class Tokenizer:
    """The tokenizer of one model. Not for two threads at a time."""

    def __init__(self, spec: TokenizerSpec) -> None:
        """Raises TokenizerError, whose message is one line for the operator."""
        self._spec = spec
        self._backend = self._load()
        self._vocab_size = self._checked_vocab_size()

    def encode(
        self, texts: Sequence[str], *, prompt: str = "", truncation: Truncation = Truncation.RIGHT
    ) -> TokenizedPiece:
        """Ids of each text with the prompt before it, special tokens included.

        Raises TextRefused: TOO_LONG with Truncation.NONE, FAILED for a text the library can't take, EMPTY,
        OUT_OF_VOCABULARY for a text with an id that the model has no row for.
        """
        start = time.perf_counter()
        if prompt:
            texts = [prompt + text for text in texts]
        if truncation is Truncation.NONE:
            self._backend.no_truncation()
        else:
            self._backend.enable_truncation(self._spec.max_seqlen, direction=_DIRECTIONS[truncation])
        return self._flatten(self._encode(texts), truncation, start)

    def _load(self) -> tokenizers.Tokenizer:
        spec = self._spec
        backend = load(Path(spec.folder), do_lower_case=spec.do_lower_case)
        num_special = backend.num_special_tokens_to_add(False)
        if spec.max_seqlen <= num_special:  # the library would then not truncate at all
            raise TokenizerError(
                f"{spec.folder}: {num_special} special tokens leave no room for a text of {spec.max_seqlen} tokens"
            )
        return backend

    def _checked_vocab_size(self) -> int | None:
        """What ids must be below; None with the many models where all are, so that theirs are never looked at.

        That a tokenizer has ids beyond is no reason to refuse the model: they may be of tokens that nobody writes.
        """
        vocab_size = self._spec.vocab_size
        if vocab_size is None or max(self._backend.get_vocab(with_added_tokens=True).values(), default=-1) < vocab_size:
            return None
        return vocab_size

    def _encode(self, texts: Sequence[str]) -> list[tokenizers.Encoding]:
        try:
            return self._backend.encode_batch_fast(texts)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # the library panics with a BaseException, which is no reason to die
            logger.error("the tokenizer failed on a text: %s", type(error).__name__)
        raise TextRefused(Refusal.FAILED, self._first_failing(texts))

    def _first_failing(self, texts: Sequence[str]) -> int:
        """Index of the first text that the library can't take, -1 where it takes each alone."""
        for index, text in enumerate(texts):
            try:
                self._backend.encode_batch_fast([text])
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException:
                return index
        return -1

    def _flatten(self, encodings: list[tokenizers.Encoding], truncation: Truncation, start: float) -> TokenizedPiece:
        max_seqlen = self._spec.max_seqlen
        token_ids: list[int] = []
        offsets = [0]
        truncated = bytearray(len(encodings))
        for index, encoding in enumerate(encodings):
            num_tokens = len(encoding)
            if num_tokens >= max_seqlen:  # `overflowing` copies what was cut off, so it is not asked of every text
                truncated[index] = bool(encoding.overflowing)
                if num_tokens > max_seqlen:
                    raise TextRefused(Refusal.TOO_LONG, index, num_tokens=num_tokens, max_tokens=max_seqlen)
            elif num_tokens == 0:
                raise TextRefused(Refusal.EMPTY, index)
            token_ids += encoding.ids
            offsets.append(len(token_ids))
        piece = TokenizedPiece(
            token_ids=np.array(token_ids, np.int32),
            offsets=np.array(offsets, np.int32),
            truncated=np.frombuffer(truncated, np.uint8),
            seconds=time.perf_counter() - start,
        )
        if self._vocab_size is not None:
            _check_ids(piece, vocab_size=self._vocab_size)
        return piece


def _check_ids(piece: TokenizedPiece, *, vocab_size: int) -> None:
    is_foreign = piece.token_ids >= vocab_size
    if is_foreign.any():
        index = int(np.searchsorted(piece.offsets, np.argmax(is_foreign), side="right")) - 1
        raise TextRefused(Refusal.OUT_OF_VOCABULARY, index)
