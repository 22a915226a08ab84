"""Texts to token ids, exactly as sentence-transformers gives them. Knows one model; nothing of queues or sockets."""

import logging
import time
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import tokenizers
from numpy.typing import NDArray

from tokenizer_pool.details import DecodedPiece, DetailedPiece, Token
from tokenizer_pool.loading import TokenizerError, load
from tokenizer_pool.messages import Refusal, TextRefused, TokenizedPiece, TokenizerSpec, Truncation

_DIRECTIONS = {Truncation.RIGHT: "right", Truncation.LEFT: "left"}

Item = TypeVar("Item")
Result = TypeVar("Result")

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
        return self._flatten(_of_each(self._backend.encode_batch_fast, texts), start)

    def details(self, texts: Sequence[str], *, prompt: str = "", add_special_tokens: bool = True) -> DetailedPiece:
        """The tokens of each text with the prompt before it, none cut off; perhaps there are none.

        Raises TextRefused: FAILED for a text the library can't take.
        """
        start = time.perf_counter()
        texts = [prompt + text for text in texts]
        self._backend.no_truncation()
        encode = partial(self._backend.encode_batch, add_special_tokens=add_special_tokens)
        encodings = _of_each(encode, texts)
        tokens = [_tokens(text, encoding) for text, encoding in zip(texts, encodings, strict=True)]
        return DetailedPiece(tokens, time.perf_counter() - start)

    def decode(
        self, token_ids: NDArray[np.int32], offsets: NDArray[np.int32], *, skip_special_tokens: bool = True
    ) -> DecodedPiece:
        """The text of each list of ids, int32 flat [offsets[-1]] and [N + 1].

        Raises TextRefused: OUT_OF_VOCABULARY for an id that the tokenizer has no token for, FAILED.
        """
        start = time.perf_counter()
        known = self._is_known
        places = np.clip(token_ids, 0, len(known) - 1)
        _check_ids((places != token_ids) | ~known[places], offsets)
        lists = [ids.tolist() for ids in np.split(token_ids, offsets[1:-1])]
        decode = partial(self._backend.decode_batch, skip_special_tokens=skip_special_tokens)
        return DecodedPiece(_of_each(decode, lists), time.perf_counter() - start)

    @cached_property
    def _is_known(self) -> NDArray[np.bool_]:
        """For each id from 0 up whether there is a token for it."""
        token_ids = list(self._backend.get_vocab(with_added_tokens=True).values())
        known = np.zeros(max(token_ids) + 1, np.bool_)
        known[token_ids] = True
        return known

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

    def _flatten(self, encodings: list[tokenizers.Encoding], start: float) -> TokenizedPiece:
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
            _check_ids(piece.token_ids >= self._vocab_size, piece.offsets)
        return piece


def _of_each(function: Callable[[Sequence[Item]], list[Result]], items: Sequence[Item]) -> list[Result]:
    """What a function of the library makes of all items. Raises TextRefused (FAILED) where it can't take one."""
    try:
        return function(items)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the library panics with a BaseException, which is no reason to die
        logger.error("the tokenizer failed on a text: %s", type(error).__name__)
    raise TextRefused(Refusal.FAILED, _first_failing(function, items))


def _first_failing(function: Callable[[Sequence[Item]], object], items: Sequence[Item]) -> int:
    """Index of the first item that the library can't take, -1 where it takes each alone."""
    for index, item in enumerate(items):
        try:
            function([item])
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:
            return index
    return -1


def _tokens(text: str, encoding: tokenizers.Encoding) -> list[Token]:
    columns = zip(encoding.ids, encoding.tokens, encoding.special_tokens_mask, encoding.offsets, strict=True)
    return [
        Token(token_id, name, True, None, None) if is_special else Token(token_id, text[start:stop], False, start, stop)
        for token_id, name, is_special, (start, stop) in columns
    ]


def _check_ids(is_foreign: NDArray[np.bool_], offsets: NDArray[np.int32]) -> None:
    """Raise TextRefused where an id is not one that may be there."""
    if is_foreign.any():
        index = int(np.searchsorted(offsets, np.argmax(is_foreign), side="right")) - 1
        raise TextRefused(Refusal.OUT_OF_VOCABULARY, index)
