"""What a receiver checks: Baseten's signature of the body, and Standard Webhooks' of id, time and body, side by side.

Secrets are `whsec_` and base64, as Standard Webhooks spells them. It signs with the decoded bytes, Baseten with the
text as it stands. Two may be valid at once, so that receivers can change over while the server runs.
"""

import base64
import binascii
import hmac
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from server.settings.flag import SettingsError
from server.settings.text_file import read_text
from server.settings.watched_files import WatchedFiles, version_of

_PREFIX = "whsec_"
_MIN_BYTES, _MAX_BYTES = 24, 64  # Standard Webhooks' bounds of a secret
_MAX_SECRETS = 2
_MAX_FILE_BYTES = 4096

Headers = list[tuple[bytes, bytes]]

logger = logging.getLogger("embedline.jobs")


@dataclass(frozen=True, slots=True)
class Secret:
    """One secret in both readings; neither is ever shown."""

    text: bytes = field(repr=False)  # with its prefix
    key: bytes = field(repr=False)  # decoded


def signed_headers(secrets: Sequence[Secret], *, request_id: str, timestamp: int, body: bytes) -> Headers:
    """The headers of one attempt; without secrets, only those that name it.

    request_id  the same for each attempt, so that a receiver can tell a repetition
    timestamp   unix seconds of this attempt; receivers refuse old ones
    """
    headers = [
        (b"x-baseten-request-id", request_id.encode()),
        (b"webhook-id", request_id.encode()),
        (b"webhook-timestamp", b"%d" % timestamp),
    ]
    if secrets:
        signed = b"%s.%d.%s" % (request_id.encode(), timestamp, body)
        hexadecimal = [hmac.digest(secret.text, body, "sha256").hex().encode() for secret in secrets]
        encoded = [base64.b64encode(hmac.digest(secret.key, signed, "sha256")) for secret in secrets]
        headers.append((b"x-baseten-signature", b",".join(b"v1=" + one for one in hexadecimal)))
        headers.append((b"webhook-signature", b" ".join(b"v1," + one for one in encoded)))
    return headers


def read_secrets(path: str) -> list[Secret]:
    """The secrets of a file: one a line, the newest first; empty lines and those that begin with # are left out.

    Raises SettingsError, which names the line and never the secret.
    """
    flag = "--jobs-webhook-secrets"
    text = read_text(path, name=flag, max_bytes=_MAX_FILE_BYTES)
    lines = enumerate(map(str.strip, text.splitlines()), 1)
    secrets = [_secret(line, where=f"{flag}, line {number}") for number, line in lines if line and line[0] != "#"]
    if not 1 <= len(secrets) <= _MAX_SECRETS:
        raise SettingsError(f"{flag} must have one secret, or two while they are rotated; it has {len(secrets)}")
    return secrets


def _secret(line: str, *, where: str) -> Secret:
    try:
        key = base64.b64decode(line.removeprefix(_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not line.startswith(_PREFIX) or not _MIN_BYTES <= len(key) <= _MAX_BYTES:
        raise SettingsError(f"{where}: a secret is {_PREFIX} and {_MIN_BYTES} to {_MAX_BYTES} bytes in base64")
    return Secret(line.encode(), key)


class SecretFile:
    """The secrets of a file, read again when it changes. A file that became wrong is logged, and the old ones stay."""

    def __init__(self, path: str) -> None:
        """Raises SettingsError."""
        self._path = path
        self._watched = WatchedFiles({path: version_of(path)})
        self._secrets = read_secrets(path)

    def secrets(self) -> list[Secret]:
        if self._watched.have_changed():
            try:
                self._secrets = read_secrets(self._path)
            except SettingsError as error:
                logger.error("webhooks are still signed with the secrets from before: %s", error)
        return self._secrets
