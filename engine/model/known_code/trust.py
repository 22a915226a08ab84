"""Keys of config.json of which the user says that they change nothing (--trust-config-key)."""

from collections.abc import Collection

from engine.model.json_files import Json
from engine.types import ModelError

TRUST = "--trust-config-key"


def check_trusted(config: Json, trusted: Collection[str], refused: Collection[str]) -> None:
    """Raises ModelError for a key that would be read, or that has no effect anyway: only refused keys need trust."""
    for key in sorted((config.keys() & set(trusted)) - set(refused)):
        raise ModelError(
            f"{TRUST} {key}: config.json's {key!r} is read or has no effect, so nothing has to be trusted; leave it out"
        )
