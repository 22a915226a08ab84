"""Chats to texts, by the model's own template."""

from dataclasses import replace
from typing import TypeVar

from server.requests.work import TokenizeRequest, Work
from tokenizer_pool.client import TokenizerPool
from wire.vocabulary import RequestClass

_Texts = TypeVar("_Texts", Work, TokenizeRequest)


async def rendered(pool: TokenizerPool, request: _Texts, request_class: RequestClass) -> _Texts:
    """The request with texts in place of its conversations. Raises TextRefused."""
    assert request.texts is not None
    assert request.chat is not None
    model, chat = request.model.index, request.chat
    texts = await pool.render(request.texts, model=model, request_class=request_class, chat=chat)
    return replace(request, texts=texts, chat=None)
