"""Conversations to texts: what a tokenizer worker is asked for, and the frames that carry it. Knows no template."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from tokenizer_pool.messages import decode_texts, encode_texts
from wire.frames import Buffer
from wire.vocabulary import RequestClass

# model (u16), class (u8), whether a generation prompt is added (u8), whether the last message is continued (u8),
# number of conversations (u32); then the conversations as `encode_texts` has them
_CHAT = struct.Struct("<HBBBI")
_RENDERED = struct.Struct("<dI")  # seconds of work, number of texts; then the texts as `encode_texts` has them


@dataclass(frozen=True, slots=True)
class Chat:
    """How a model's chat template is used."""

    add_generation_prompt: bool = False  # what opens an answer stands at the end
    continue_final_message: bool = False  # the text ends with the last message, without what closes it


@dataclass(frozen=True, slots=True)
class ChatPiece:
    """Some conversations of one request."""

    model: int  # index of the model in this server
    request_class: RequestClass
    conversations: Sequence[str]  # each a JSON list of objects with `role` and `content`, both texts
    chat: Chat

    @property
    def num_items(self) -> int:
        """Conversations."""
        return len(self.conversations)

    @property
    def num_chars(self) -> int:
        """Characters of all conversations."""
        return sum(map(len, self.conversations))


@dataclass(frozen=True, slots=True)
class RenderedPiece:
    """The text of each conversation."""

    texts: list[str]
    seconds: float  # of work in the worker

    @property
    def num_items(self) -> int:
        """Texts."""
        return len(self.texts)


def encode_chat(piece: ChatPiece) -> list[Buffer]:
    """CHAT. Raises UnicodeEncodeError if a conversation holds a lone surrogate."""
    chat = piece.chat
    header = _CHAT.pack(
        piece.model, piece.request_class, chat.add_generation_prompt, chat.continue_final_message, piece.num_items
    )
    return [header, *encode_texts(piece.conversations)]


def decode_chat(payload: memoryview) -> ChatPiece:
    """The inverse of `encode_chat`."""
    model, request_class, adds, continues, num_conversations = _CHAT.unpack_from(payload)
    conversations = decode_texts(payload, _CHAT.size, num_conversations)[1]
    return ChatPiece(model, RequestClass(request_class), conversations, Chat(bool(adds), bool(continues)))


def encode_rendered(piece: RenderedPiece) -> list[Buffer]:
    """RENDERED."""
    return [_RENDERED.pack(piece.seconds, piece.num_items), *encode_texts(piece.texts)]


def decode_rendered(payload: memoryview) -> RenderedPiece:
    """The inverse of `encode_rendered`. Raises struct.error or ValueError."""
    seconds, num_texts = _RENDERED.unpack_from(payload)
    return RenderedPiece(decode_texts(payload, _RENDERED.size, num_texts)[1], seconds)
