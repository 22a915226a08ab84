"""Fetches a model's files from the hub into its cache, or says in one line why it can't. Knows no file's content.

Imported only where the hub is needed: the library takes 0.16 s to import.
"""

import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import errors, get_session, set_client_factory, snapshot_download
from huggingface_hub.constants import HF_HUB_CACHE
from huggingface_hub.utils.tqdm import disable_progress_bars

from engine.store.hub_cache import ALLOW_PATTERNS, IGNORE_PATTERNS, check_snapshot, snapshot_in_part
from engine.types import ModelError
from wire.files import remedy

logger = logging.getLogger("embedline.engine.hub")
_TIMEOUT = 10.0  # seconds without a byte; the library's own for most requests, where it has any


def fetch(
    model_id: str,
    revision: str | None,
    *,
    cache_dir: Path | None,
    token: str | None,
    more: Sequence[str] = (),
    needs_modules: bool = True,
) -> Path:
    """The folder with the model's files, its name the commit.

    Files that are there are kept, and an interrupted download goes on. Where the hub can't be reached, files that were
    fetched before are used if none is missing. Files with the patterns `more` are fetched too. needs_modules: see
    `check_snapshot`. Raises ModelError.
    """
    _set_timeouts()
    _use_our_log()
    logger.info("fetching %s from the hub, because the cache does not have it", model_id)
    try:
        path = snapshot_download(
            model_id,
            revision=revision,
            cache_dir=cache_dir,
            token=_checked(token),
            allow_patterns=[*ALLOW_PATTERNS, *more],
            ignore_patterns=list(IGNORE_PATTERNS),
        )
    except ModelError:
        raise
    except Exception as error:  # HTTP, TLS, proxies, disks: the libraries below raise what they like
        part = snapshot_in_part(cache_dir or Path(HF_HUB_CACHE), model_id, revision)
        if part and isinstance(error, errors.IncompleteSnapshotError | errors.LocalEntryNotFoundError):
            check_snapshot(part, needs_modules=needs_modules, more=more)
        raise ModelError(_why(error, model_id, revision)) from error
    # Where the hub can't be reached, the library gives the folder as it is, if it has no listing of the repository.
    check_snapshot(Path(path), needs_modules=needs_modules, more=more)
    return Path(path)


def _checked(token: str | None) -> str | None:
    """The token without the newline that files of secrets end with; None where there is none."""
    token = (token or "").strip()
    if not all("!" <= character <= "~" for character in token):  # the HTTP library's error would show it
        raise ModelError("--hf-token has characters that can't be in a token")
    return token or None


def _why(error: Exception, model_id: str, revision: str | None) -> str:
    name = f"--model-id {model_id!r}"
    status = getattr(getattr(error, "response", None), "status_code", None)
    match error:
        case errors.GatedRepoError():
            return f"{name} is gated on the hub; --hf-token must be the token of an account that may read it"
        case errors.RepositoryNotFoundError():
            return f"{name} is not on the hub, or is private and needs --hf-token"
        case errors.RevisionNotFoundError():
            return f"--revision {revision!r} is no revision of {model_id!r} on the hub"
        case errors.HfHubHTTPError() if status in (401, 403):
            return f"{name} can't be fetched: the hub refuses the token (--hf-token)"
        case OSError(errno=int()):  # a disk's; the network's are the libraries' own and carry no number
            return f"--huggingface-hub-cache can't take the files of {model_id!r}: {_first_line(error)}{remedy(error)}"
    return f"{name} is not on this machine and can't be fetched from the hub: {_first_line(error)}"


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _set_timeouts() -> None:
    """Give a timeout to the requests that the library sends without one. A hub that accepts connections and never
    answers would block the start for ever. Raises ModelError."""
    try:
        session = get_session()
    except Exception as error:  # its text can hold a proxy's password
        raise ModelError(
            f"no connection to the hub can be set up ({type(error).__name__}); one of HTTP_PROXY, HTTPS_PROXY, "
            "ALL_PROXY, SSL_CERT_FILE and SSL_CERT_DIR in the environment is wrong"
        ) from None
    hooks = session.event_hooks["request"]
    if _bound not in hooks:
        client, hooks = type(session), [*hooks, _bound]
        set_client_factory(lambda: client(event_hooks={"request": hooks}, follow_redirects=True, timeout=_TIMEOUT))


def _bound(request: Any) -> None:
    """An event hook of the HTTP client: sets the timeouts of a request that are None."""
    timeouts = request.extensions.get("timeout", {})
    request.extensions["timeout"] = {name: value or _TIMEOUT for name, value in timeouts.items()}


def _use_our_log() -> None:
    """Send the library's warnings (retries, rate limits) to the server's log, and show bars only on a terminal."""
    if not sys.stderr.isatty():
        disable_progress_bars()
    for name in ("httpx", "httpx2"):  # it logs a line for each request, with addresses that give access
        logging.getLogger(name).setLevel(logging.WARNING)
    library = logging.getLogger("huggingface_hub")
    library.handlers.clear()
    library.propagate = True
