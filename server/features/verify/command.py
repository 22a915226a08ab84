"""`embedline verify`: its options."""

import os
import sys
from typing import Annotated, Any

import typer

from server.settings.precedence import settings_from


def verify(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A folder, or a name on the hub.")],
    *,
    json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
    **words: Any,
) -> None:
    """Hold a model's rows of fixed texts against those of the library it was made with: exit code 1 if they differ.

    That is sentence-transformers or transformers, one text at a time; the engine is the one that a start would take.
    With --quantization fp8 they are held against the same model with plain weights instead, as a start does that finds
    nothing in its cache: exit code 0 if the model can be served so, at least in part.
    """
    from server.features.verify.comparison import verify as run

    sys.exit(run(settings_from({**words, "model_id": model}, os.environ), as_json=json))
