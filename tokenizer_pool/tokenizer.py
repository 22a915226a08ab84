"""Texts to token ids, exactly as sentence-transformers gives them. Knows one model; nothing of queues or sockets."""

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import tokenizers
from numpy.typing import NDArray

from tokenizer_pool.guarded import TextQuarantine, of_each
from tokenizer_pool.loading import load, load_as_it_stands
from tokenizer_pool.messages import TextRefusal, TextRefused, TokenizerSpec, Truncation
from tokenizer_pool.pairs import Pairs, Template
from tokenizer_pool.scanner import Scanner
from tokenizer_pool.tasks import DetailedPiece, ScannedPiece, ScanPiece, TextsPiece, Token, TokenizedTexts
from wire.parts import PROMPT_TOKEN, Part
from wire.tokenizer_files import TokenizerError, has_chat_template, has_token_types

if TYPE_CHECKING:
    from tokenizer_pool.chat_template import ChatTemplate

_UNKNOWN = "<unk>"  # the usual name, for kinds of tokenizers that do not say theirs
_DIRECTIONS = {Truncation.RIGHT: "right", Truncation.LEFT: "left"}


class Tokenizer:
    """The tokenizer of one model. Not for two threads at a time."""

    def __init__(self, spec: TokenizerSpec, quarantine: TextQuarantine | None = None) -> None:
        """Raises TokenizerError, whose message is one line for the operator."""
        self._spec = spec
        self._quarantine = quarantine
        self._backend = self._load()
        has_types = not spec.as_it_stands and has_token_types(Path(spec.folder))
        self._num_special = self._backend.num_special_tokens_to_add(False)
        self._pairs = Pairs(self._backend, has_types=has_types, quarantine=quarantine)
        self._template = Template(self._backend, spec, quarantine) if spec.template or spec.chat_pairs else None
        if spec.chat_of_texts:
            from tokenizer_pool.chat_pairs import check_texts  # its library takes a while to import

            check_texts(Path(spec.folder), spec.chat_of_texts, self._backend)
        self._scanner = Scanner(self._backend, quarantine)
        self._chat_template = self._read_chat_template()
        self._vocab_size = self._checked_vocab_size()
        # Prompts come with requests too, so that there may be any number of them.
        self._num_prompt_tokens = lru_cache(maxsize=64)(self._count_prompt_tokens)

    def encode(
        self,
        texts: Sequence[str],
        *,
        prompt: str = "",
        truncation: Truncation = Truncation.RIGHT,
        pair_texts: Sequence[str] = (),
        max_tokens: int | None = None,
        add_special_tokens: bool = True,
        is_prompted: bool = False,
    ) -> TokenizedTexts:
        """Ids of each text with the prompt before it, special tokens included.

        With `pair_texts`, as many, of each pair: in the model's template with the prompt as its instruction, or else
        as transformers pairs texts, with the prompt before the first; the longer text is then cut first.
        `max_tokens` may be below what the model takes; `add_special_tokens` is for texts alone, and so is
        `is_prompted`: they have the prompt already.
        Raises TextRefused: TOO_LONG with Truncation.NONE, NO_ROOM, FAILED for a text the library can't take, EMPTY,
        OUT_OF_VOCABULARY for a text with an id that the model has no row for.
        """
        max_seqlen = self._spec.max_seqlen if max_tokens is None else min(max_tokens, self._spec.max_seqlen)
        if pair_texts:
            return self._checked(self._encode_pairs(texts, pair_texts, prompt, truncation, max_seqlen))
        start = time.perf_counter()
        num_special = self._num_special if add_special_tokens else 0
        if max_seqlen <= num_special:  # the library would then not truncate at all
            raise TextRefused(TextRefusal.NO_ROOM, -1, num_tokens=num_special, max_tokens=max_seqlen)
        if prompt and not is_prompted:
            texts = [prompt + text for text in texts]
        if truncation is Truncation.NONE:
            self._backend.no_truncation()
        else:
            self._backend.enable_truncation(max_seqlen, direction=_DIRECTIONS[truncation])
        encode = partial(self._backend.encode_batch_fast, add_special_tokens=add_special_tokens)
        piece = self._flatten(of_each(encode, texts, self._quarantine), max_seqlen, start)
        if not prompt or not self._spec.marks_prompts:
            return piece
        limit = None if truncation is Truncation.NONE else (max_seqlen, truncation)
        return _with_prompt_marked(piece, self._num_prompt_tokens(prompt, limit, add_special_tokens))

    def details(self, texts: Sequence[str], *, prompt: str = "", add_special_tokens: bool = True) -> DetailedPiece:
        """The tokens of each text with the prompt before it, none cut off; perhaps there are none.

        Raises TextRefused: FAILED for a text the library can't take.
        """
        start = time.perf_counter()
        texts = [prompt + text for text in texts]
        self._backend.no_truncation()
        encode = partial(self._backend.encode_batch, add_special_tokens=add_special_tokens)
        encodings = of_each(encode, texts, self._quarantine)
        subwords = Subwords(self._backend)
        tokens = [_tokens(text, encoding, subwords) for text, encoding in zip(texts, encodings, strict=True)]
        return DetailedPiece(tokens, time.perf_counter() - start)

    def scan(self, piece: ScanPiece) -> ScannedPiece:
        """The tokens of a slice of a long text that hold whatever follows. Raises TextRefused: FAILED."""
        start = time.perf_counter()
        backend, as_loaded = self._backend, self._backend.encode_special_tokens
        backend.no_truncation()
        hides_specials = piece.is_of_pair and self._template is not None and self._template.hides_specials
        backend.encode_special_tokens = hides_specials or as_loaded
        try:
            found = self._scanner.scan(piece)
        finally:
            backend.encode_special_tokens = as_loaded
        return replace(found, seconds=time.perf_counter() - start)

    def decode(
        self, token_ids: NDArray[np.int32], offsets: NDArray[np.int32], *, skip_special_tokens: bool = True
    ) -> TextsPiece:
        """The text of each list of ids, int32 flat [offsets[-1]] and [N + 1].

        Raises TextRefused: OUT_OF_VOCABULARY for an id that the tokenizer has no token for, FAILED.
        """
        start = time.perf_counter()
        known = self._is_known
        places = np.clip(token_ids, 0, len(known) - 1)
        _check_ids((places != token_ids) | ~known[places], offsets)
        lists = [ids.tolist() for ids in np.split(token_ids, offsets[1:-1])]
        decode = partial(self._backend.decode_batch, skip_special_tokens=skip_special_tokens)
        return TextsPiece(of_each(decode, lists, self._quarantine), time.perf_counter() - start)

    @property
    def chat_template(self) -> "ChatTemplate":
        """Raises TextRefused (NO_TEMPLATE) if the model has none."""
        if self._chat_template is None:
            raise TextRefused(TextRefusal.NO_TEMPLATE, -1)
        return self._chat_template

    def _read_chat_template(self) -> "ChatTemplate | None":
        """None where there is none. Not left to the first chat: an upgrade may have replaced the module by then."""
        folder = Path(self._spec.folder)
        if not has_chat_template(folder):
            return None
        from tokenizer_pool.chat_template import ChatTemplate  # its library takes a while to import

        try:
            return ChatTemplate(folder, self._quarantine)
        except TextRefused:
            return None

    def _encode_pairs(
        self, texts: Sequence[str], pair_texts: Sequence[str], prompt: str, truncation: Truncation, max_seqlen: int
    ) -> TokenizedTexts:
        if self._template is None:
            return self._pairs.encode(texts, pair_texts, prompt=prompt, truncation=truncation, max_seqlen=max_seqlen)
        return self._template.encode(
            texts, pair_texts, instruction=prompt, truncation=truncation, max_seqlen=max_seqlen
        )

    def _count_prompt_tokens(self, prompt: str, limit: tuple[int, Truncation] | None, add_special_tokens: bool) -> int:
        """Count the tokens that sentence-transformers takes for the prompt's: those of the prompt by itself, with those
        put in front, and without one behind, such as [SEP]. `limit` is what the tokenizer now cuts a text to."""
        encode = partial(self._backend.encode_batch_fast, add_special_tokens=add_special_tokens)
        (encoding,) = of_each(encode, [prompt], self._quarantine)
        ends_special = add_special_tokens and bool(encoding.ids) and encoding.ids[-1] in self._special_ids
        return len(encoding) - ends_special

    @cached_property
    def _special_ids(self) -> frozenset[int]:
        tokens = self._backend.get_added_tokens_decoder()
        return frozenset(token_id for token_id, token in tokens.items() if token.special)

    @cached_property
    def _is_known(self) -> NDArray[np.bool_]:
        """Whether there is a token for each id from 0 up."""
        token_ids = list(self._backend.get_vocab(with_added_tokens=True).values())
        known = np.zeros(max(token_ids) + 1, np.bool_)
        known[token_ids] = True
        return known

    def _load(self) -> tokenizers.Tokenizer:
        spec = self._spec
        folder = Path(spec.folder)
        backend = load_as_it_stands(folder) if spec.as_it_stands else load(folder, do_lower_case=spec.do_lower_case)
        num_special = backend.num_special_tokens_to_add(False)
        if spec.max_seqlen <= num_special:  # the library would then not truncate at all
            raise TokenizerError(
                f"{spec.folder}: {num_special} special tokens leave no room for a text of {spec.max_seqlen} tokens"
            )
        return backend

    def _checked_vocab_size(self) -> int | None:
        """The bound of ids; None with the many models where all are below it, so that theirs are never looked at.

        That a tokenizer has ids beyond is no reason to refuse the model: they may be of tokens that nobody writes.
        """
        vocab_size = self._spec.vocab_size
        if vocab_size is None or max(self._backend.get_vocab(with_added_tokens=True).values(), default=-1) < vocab_size:
            return None
        return vocab_size

    def _flatten(self, encodings: list[tokenizers.Encoding], max_seqlen: int, start: float) -> TokenizedTexts:
        token_ids: list[int] = []
        offsets = [0]
        truncated = bytearray(len(encodings))
        for index, encoding in enumerate(encodings):
            num_tokens = len(encoding)
            if num_tokens >= max_seqlen:  # `overflowing` copies what was cut off, so it is not asked of every text
                truncated[index] = bool(encoding.overflowing)
                if num_tokens > max_seqlen:
                    raise TextRefused(TextRefusal.TOO_LONG, index, max_tokens=max_seqlen)
            elif num_tokens == 0:
                raise TextRefused(TextRefusal.EMPTY, index)
            token_ids += encoding.ids
            offsets.append(len(token_ids))
        piece = TokenizedTexts(
            token_ids=np.array(token_ids, np.int32),
            offsets=np.array(offsets, np.int32),
            truncated=np.frombuffer(truncated, np.uint8),
            seconds=time.perf_counter() - start,
        )
        return self._checked(piece)

    def _checked(self, piece: TokenizedTexts) -> TokenizedTexts:
        """Raises TextRefused where a text has an id that the model has no row for."""
        if self._vocab_size is not None:
            _check_ids(piece.token_ids >= self._vocab_size, piece.offsets)
        return piece


class Subwords:
    """The rule for which tokens continue a word, as transformers' pipeline for token classification tells it.

    Tokenizers that mark such tokens (WordPiece's ##) are believed; with others a token continues a word where no space
    is next to its first character.
    """

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        model = backend.model
        self._are_marked = bool(getattr(model, "continuing_subword_prefix", None))
        self._unknown_id = backend.token_to_id(getattr(model, "unk_token", None) or _UNKNOWN)

    def continues(self, text: str, token_id: int, name: str, start: int, stop: int) -> bool:
        """Whether the token of that name, which stands for text[start:stop], continues a word."""
        if token_id == self._unknown_id:
            return False
        if self._are_marked:
            return len(name) != stop - start
        return start > 0 and " " not in text[start - 1 : start + 1]


def _tokens(text: str, encoding: tokenizers.Encoding, subwords: Subwords) -> list[Token]:
    columns = zip(encoding.ids, encoding.tokens, encoding.special_tokens_mask, encoding.offsets, strict=True)
    return [
        Token(token_id, name, True, None, None)
        if is_special
        else Token(
            token_id, text[start:stop], False, start, stop, subwords.continues(text, token_id, name, start, stop)
        )
        for token_id, name, is_special, (start, stop) in columns
    ]


def _with_prompt_marked(piece: TokenizedTexts, num_prompt_tokens: int) -> TokenizedTexts:
    """Mark so many tokens at the start of each text."""
    places = np.arange(piece.num_tokens) - np.repeat(piece.offsets[:-1], np.diff(piece.offsets))
    marks = np.where(places < num_prompt_tokens, np.uint8(PROMPT_TOKEN), np.uint8(0))
    return replace(piece, parts={**piece.parts, Part.MARKS: marks})


def _check_ids(is_foreign: NDArray[np.bool_], offsets: NDArray[np.int32]) -> None:
    """Raise TextRefused where an id is not one that may be there."""
    if is_foreign.any():
        index = int(np.searchsorted(offsets, np.argmax(is_foreign), side="right")) - 1
        raise TextRefused(TextRefusal.OUT_OF_VOCABULARY, index)
