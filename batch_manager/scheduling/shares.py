"""Fair shares between the API keys of one class: which of those that wait comes next.

This is start-time fair queueing. Each key has a count of the tokens that it has had, divided by its weight, and the key
with the lowest count comes next. So keys that always have work get tokens in proportion to their weights, however large
their requests are, and what a key leaves goes to the others. A key that comes back after a pause starts at the count of
whoever was served last: nobody saves up a claim, and nobody has to pay back what was lent.

Deficit round robin gives the same shares. It was not taken because it needs a quantum as large as the longest sequence
or many empty turns, and a key that has just come would wait for one quantum of every other key.
"""


class Shares:
    """What each key has had. All output kinds of a class share it."""

    __slots__ = ("_had", "_num_queues", "_served")

    def __init__(self) -> None:
        self._had: dict[int, float] = {}  # by key: tokens over weight
        self._num_queues: dict[int, int] = {}  # by key: queues in which it waits
        self._served = 0.0  # the highest count at which a key got a turn

    def had(self, key: int) -> float:
        """Tokens over weight. It only grows."""
        return self._had[key]

    def enter(self, key: int) -> None:
        """The key begins to wait in a queue."""
        num_queues = self._num_queues.get(key, 0)
        if not num_queues:
            self._had[key] = max(self._had.get(key, 0.0), self._served)
        self._num_queues[key] = num_queues + 1

    def leave(self, key: int) -> None:
        """Nothing of the key waits in a queue any more."""
        self._num_queues[key] -= 1

    def charge(self, key: int, num_tokens: int, *, weight: float) -> None:
        """A waiting key got its turn."""
        had = self._had[key]
        self._served = max(self._served, had)
        self._had[key] = had + num_tokens / weight
