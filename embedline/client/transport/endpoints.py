"""Several base URLs: a request goes to the one with the least to do; one that fails is left alone for a while."""

from collections.abc import Collection, Sequence

from embedline.client.transport.endpoint import Endpoint


class Endpoints:
    """All base URLs of a client."""

    def __init__(self, all_of_them: Sequence[Endpoint]) -> None:
        self.all = tuple(all_of_them)

    def begin(self, now: float, *, is_first: bool, avoid: Collection[Endpoint] = ()) -> Endpoint | None:
        """The endpoint at which a request was begun; None if none has room. Those to avoid come last."""
        for endpoint in sorted(self.all, key=lambda one: (one in avoid, one.is_failing, one.load)):
            if endpoint.try_begin(now, is_first=is_first):
                return endpoint
        return None

    def wakes_at(self, now: float) -> float:
        """When the first one that is left alone may be asked again; infinity if none is."""
        return min((one.not_before for one in self.all if one.not_before > now), default=float("inf"))

    def others_work(self, tried: Collection[Endpoint]) -> bool:
        """Whether there are endpoints beside these that do not fail."""
        return any(one not in tried and not one.is_failing for one in self.all)

    def for_hedge(self, endpoint: Endpoint, task: str) -> Endpoint:
        """Where a second copy of a request goes: elsewhere, if that server is asked in the same way."""
        way = endpoint.way(task)
        others = [one for one in self.all if one is not endpoint and not one.is_failing and one.way(task) == way]
        return min(others, key=lambda one: one.load, default=endpoint)

    def wake_all(self) -> None:
        """Those that wait for a connection look whether their call is aborted."""
        for endpoint in self.all:
            endpoint.pool.wake_all()

    def close(self) -> None:
        for endpoint in self.all:
            endpoint.pool.close()
