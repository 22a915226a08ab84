"""Embedline, a self-hosted embedding inference server, and its client. Needs numpy and nothing else.

The client's names are loaded when they are first used: `python -m embedline` imports this file too, at a time when any
other import could run a file of the user's that happens to lie where they stand.
"""

__version__ = "0.2.0"

TYPE_CHECKING = False  # type checkers take it for typing's
if TYPE_CHECKING:
    from embedline.client.async_client import AsyncClient as AsyncClient
    from embedline.client.client import Client as Client
    from embedline.client.errors import Cancelled as Cancelled
    from embedline.client.errors import DeadlineExceeded as DeadlineExceeded
    from embedline.client.errors import EmbedlineError as EmbedlineError
    from embedline.client.errors import NoThread as NoThread
    from embedline.client.errors import RequestFailed as RequestFailed
    from embedline.client.preference import CancellationToken as CancellationToken
    from embedline.client.preference import RequestProcessingPreference as RequestProcessingPreference

_MODULES = {
    "AsyncClient": "async_client",
    "CancellationToken": "preference",
    "Cancelled": "errors",
    "Client": "client",
    "DeadlineExceeded": "errors",
    "EmbedlineError": "errors",
    "NoThread": "errors",
    "RequestFailed": "errors",
    "RequestProcessingPreference": "preference",
}
__all__ = sorted(_MODULES)


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(f"embedline.client.{_MODULES[name]}"), name)
    globals()[name] = value
    return value
