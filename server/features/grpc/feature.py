"""The gRPC feature of a server, and its flag."""

from dataclasses import dataclass
from importlib.util import find_spec

from server.feature import Feature
from server.settings.flag import SettingsError, check_flags, flag
from server.settings.http_flags import MAX_PORT

_PACKAGES = ("grpc", "grpc_health", "grpc_reflection")  # what the extra brings


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcFlags:
    """The flags of gRPC."""

    grpc_port: int | None = flag(
        None,
        "HTTP",
        "A port for text-embeddings-inference's gRPC API, on --hostname, with gRPC's health and reflection; 0 takes a "
        "free one. Keys, limits and TLS are those of --port. Needs the extra: pip install 'embedline[grpc]'. With "
        "--takeover both servers accept on it until the running one ends.",
        least=0,
        most=MAX_PORT,
    )

    def __post_init__(self) -> None:
        """Raises SettingsError where the extra is missing."""
        check_flags(self)
        if self.grpc_port is not None and not all(map(find_spec, _PACKAGES)):
            raise SettingsError("--grpc-port needs packages that are not installed: pip install 'embedline[grpc]'")


GRPC = Feature(
    name="gRPC",
    flags=GrpcFlags,
    switch=("grpc_port", "N"),
    has_port=True,
    frontend="server.features.grpc.server:make_part",
)
