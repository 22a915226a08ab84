"""The routes of Infinity that other dialects do not have: those for images and sound, which this server refuses.

https://github.com/michaelfeil/infinity
"""

from functools import partial

from server.dialects.route import Answer, PlainRoute
from server.dialects.writing.error_shapes import openai_error
from server.requests.errors import UnsupportedTask
from server.requests.models import ServerState


def refuse(what: str, state: ServerState) -> Answer:
    """Whatever the body says."""
    return openai_error(UnsupportedTask(f"{what} can't be embedded here; POST /embeddings embeds texts", param="input"))


PLAIN_ROUTES = tuple(
    PlainRoute(
        path=path,
        method="POST",
        answer=partial(refuse, what),
        error_shape=openai_error,
        summary=f"Refused: {what} can't be embedded",
        is_listed=False,
    )
    for path, what in (("/embeddings_image", "images"), ("/embeddings_audio", "sound"))
)
