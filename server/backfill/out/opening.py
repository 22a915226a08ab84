"""OUT as the command line has it: a path, or a URL of fsspec."""

import re

from server.backfill.errors import RefusedJob
from server.backfill.locations import check_no_secrets, local_path
from server.backfill.out.files import Files
from server.backfill.out.folder import Folder
from server.backfill.out.objects import Objects

_NOT_ONE = re.compile(r":{2}|[?]")  # a chain of fsspec's, or a query


def files_at(location: str) -> Files:
    """Nothing is written yet. Raises RefusedJob."""
    path = local_path(location)
    if path is not None:
        return Folder(path)
    check_no_secrets(location, "OUT")
    if _NOT_ONE.search(location):
        raise RefusedJob("OUT must be one URL without a query: how a store is reached is said by the environment")
    return Objects(location)
