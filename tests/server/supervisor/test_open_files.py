"""A limit on open files that is too low ends the start with one line; frontends get what is left."""

import resource

import pytest

from server.settings.flag import SettingsError
from server.supervisor import resources
from server.supervisor.spawn import raise_open_files


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Soft and hard."""
    limits = [256, 512]

    def change(_: int, new: tuple[int, int]) -> None:
        limits[:] = new

    monkeypatch.setattr(resource, "getrlimit", lambda _: tuple(limits))
    monkeypatch.setattr(resource, "setrlimit", change)
    return limits


def test_it_is_raised_as_far_as_it_goes(limit: list[int]) -> None:
    raise_open_files()
    assert limit == [512, 512]


@pytest.mark.holds("Limits")
def test_a_server_that_could_not_restart_its_processes_is_not_started(limit: list[int]) -> None:
    resources.check_open_files(num_processes=45)
    with pytest.raises(SettingsError, match=r"may open 256 files, and this server needs 270: .* \(ulimit -n 270, "):
        resources.check_open_files(num_processes=50)


def test_a_frontend_has_what_its_peers_leave(limit: list[int]) -> None:
    assert resources.max_connections(num_peers=8) == 160
