"""Requests' pairs of texts to token ids, and which of them are refused. How a pair is put together is in wire.pairs."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
import tokenizers

from tokenizer_pool.guarded import TextQuarantine, of_each, of_each_once
from tokenizer_pool.messages import TextRefusal, TextRefused, TokenizerSpec, Truncation
from tokenizer_pool.tasks import TokenizedTexts, offsets_of
from wire.pairs import FilledTemplate, JoinedPairs, cut
from wire.parts import Part
from wire.tokenizer_files import TokenizerError


class Pairs:
    """How one tokenizer puts two texts together, with the ids, types and cuts that transformers gives them.

    The library could do all of it, but where both texts are too long it makes every combination of what it cuts off the
    one and off the other, which is gigabytes for two long documents. So texts are tokenized by themselves, then cut and
    joined here. A query is then also tokenized only once for all its documents.
    """

    def __init__(
        self, backend: tokenizers.Tokenizer, *, has_types: bool, quarantine: TextQuarantine | None = None
    ) -> None:
        """`has_types` says whether the model takes types of tokens."""
        self._backend = backend
        self._quarantine = quarantine
        self._joined = JoinedPairs(backend, has_types=has_types)
        self._query: tuple[str, list[int]] = ("", [])  # the latest that many documents had in common, and its ids

    def encode(
        self, texts: Sequence[str], pair_texts: Sequence[str], *, prompt: str, truncation: Truncation, max_seqlen: int
    ) -> TokenizedTexts:
        """Ids of each pair, with the prompt before its first text; where it is too long the longer text is cut first.

        Raises TextRefused: TOO_LONG with Truncation.NONE, NO_ROOM where not even the special tokens fit, FAILED, EMPTY.
        """
        start = time.perf_counter()
        self._backend.no_truncation()
        encode = partial(self._backend.encode_batch_fast, add_special_tokens=False)
        firsts = self._firsts(encode, [prompt + text for text in texts])
        seconds = of_each_once(encode, pair_texts, self._quarantine)
        token_ids: list[int] = []
        type_ids: list[int] = []
        offsets = [0]
        truncated = bytearray(len(texts))
        for index, (first, second) in enumerate(zip(firsts, seconds, strict=True)):
            pair = (first, second.ids)
            room = max_seqlen - self._joined.num_special
            if self._is_long(pair, index, truncation, room):
                truncated[index] = True
                pair = cut(pair, room, keeps_end=truncation is Truncation.LEFT)
            self._joined.append(pair, token_ids, type_ids)
            offsets.append(len(token_ids))
        return TokenizedTexts(
            token_ids=np.array(token_ids, np.int32),
            offsets=np.array(offsets, np.int32),
            truncated=np.frombuffer(truncated, np.uint8),
            seconds=time.perf_counter() - start,
            parts={Part.TOKEN_TYPE_IDS: np.array(type_ids, np.int32)} if self._joined.has_types else {},
        )

    def _firsts(
        self, encode: Callable[[Sequence[str]], list[tokenizers.Encoding]], texts: Sequence[str]
    ) -> list[list[int]]:
        """Ids of each. A query comes with every piece of its documents, and one that is longer than they are would be
        nearly all of the work."""
        if texts.count(texts[0]) < len(texts):
            return [encoding.ids for encoding in of_each(encode, texts, self._quarantine)]
        if texts[0] != self._query[0]:
            self._query = texts[0], of_each(encode, texts[:1], self._quarantine)[0].ids
        return [self._query[1]] * len(texts)

    def _is_long(self, pair: tuple[list[int], list[int]], index: int, truncation: Truncation, room: int) -> bool:
        """Whether a pair must be cut. Raises TextRefused if that is off or no help, or if there are no tokens."""
        num_special, num_tokens = self._joined.num_special, len(pair[0]) + len(pair[1])
        if num_tokens + num_special == 0:
            raise TextRefused(TextRefusal.EMPTY, index)
        if num_tokens <= room:
            return False
        limit = room + num_special
        if truncation is Truncation.NONE:
            raise TextRefused(TextRefusal.TOO_LONG, index, max_tokens=limit)
        if room < 0:
            raise TextRefused(TextRefusal.NO_ROOM, -1, num_tokens=num_special, max_tokens=limit)
        return True


class Template:
    """The template of one model over its tokenizer."""

    def __init__(
        self, backend: tokenizers.Tokenizer, spec: TokenizerSpec, quarantine: TextQuarantine | None = None
    ) -> None:
        """Raises TokenizerError where the fixed parts leave no room for texts, or the chat template takes no pairs."""
        encode_each = partial(of_each_once, quarantine=quarantine)
        if spec.chat_pairs:
            from tokenizer_pool.chat_pairs import filled_pairs  # its library takes a while to import

            self._of = filled_pairs(Path(spec.folder), spec.chat_pairs, backend, encode_each=encode_each)
        else:
            self._of = dict.fromkeys((True, False), FilledTemplate(backend, spec.template, encode_each=encode_each))
        num_fixed = max(template.num_fixed for template in self._of.values())
        if num_fixed >= spec.max_seqlen:
            raise TokenizerError(
                f"{spec.folder}: {num_fixed} tokens of the template leave no room in {spec.max_seqlen} tokens"
            )
        self.hides_specials = all(template.hides_specials for template in self._of.values())
        self._own_instruction = spec.instruction

    def encode(
        self,
        texts: Sequence[str],
        pair_texts: Sequence[str],
        *,
        instruction: str,
        truncation: Truncation,
        max_seqlen: int,
    ) -> TokenizedTexts:
        """Ids of each pair. Where one is too long the document loses tokens, then the query, then the instruction.

        Raises TextRefused: TOO_LONG with Truncation.NONE, NO_ROOM where the fixed parts leave none, FAILED, EMPTY,
        UNUSED for an instruction that is not the model's own and has no place.
        """
        start = time.perf_counter()
        template = self._of[bool(instruction)]
        if instruction not in ("", self._own_instruction) and not template.takes_instruction:
            raise TextRefused(TextRefusal.UNUSED, -1)
        if max_seqlen <= template.num_fixed:
            raise TextRefused(TextRefusal.NO_ROOM, -1, num_tokens=template.num_fixed, max_tokens=max_seqlen)
        keeps_end = truncation is Truncation.LEFT
        rows = []
        truncated = np.zeros(len(texts), np.uint8)
        filled = template.fill(texts, pair_texts, instruction=instruction, keeps_end=keeps_end)
        for index, parts in enumerate(filled):
            num_tokens = sum(len(part.ids) for part in parts)
            if num_tokens == 0:
                raise TextRefused(TextRefusal.EMPTY, index)
            if num_tokens > max_seqlen:
                if truncation is Truncation.NONE:
                    raise TextRefused(TextRefusal.TOO_LONG, index, max_tokens=max_seqlen)
                truncated[index] = 1
                template.cut(parts, num_tokens - max_seqlen)
            rows.append(list(chain.from_iterable(part.ids for part in parts)))
        return TokenizedTexts(
            token_ids=np.fromiter(chain.from_iterable(rows), np.int32),
            offsets=offsets_of(np.fromiter(map(len, rows), np.int32, len(rows))),
            truncated=truncated,
            seconds=time.perf_counter() - start,
        )
