"""The command line with Qdrant's own local mode, in the folder of QDRANT_FOLDER, in place of a server."""

import os
from typing import Any

from qdrant_client import QdrantClient

from server import cli
from server.features.backfill import qdrant


def _client(**_: Any) -> QdrantClient:
    return QdrantClient(path=os.environ["QDRANT_FOLDER"])


if __name__ == "__main__":
    vars(qdrant)["QdrantClient"] = _client
    cli.main()
