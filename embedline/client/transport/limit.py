"""How many requests in flight are worth while, learnt from the server's answers. Knows no clock and no thread.

The idea is TCP Vegas's. The fastest round of answers shows what a request takes that waits for no other of ours. If
requests take longer, the excess is waiting: of L in flight, L * (1 - fastest / now) wait in the server's queue. A few
should, so that the server never idles between two of ours; more gain nothing and only make everybody wait. A refusal
(429, 503) is plainer still and takes three tenths away.

A server that becomes slower for good, say because the texts become longer, looks like a queue. So now and then half of
the limit is used for two rounds: the first drains what was sent before, the second shows what is the fastest now.
"""

_FIRST = 4
_FLOOR = 3  # by latency alone; refusals go down to 1
_FEW_WAIT = 1.5
_MANY_WAIT = 4.0
_KEPT_AFTER_REFUSAL = 0.7
_PROBE_EVERY = 40  # rounds


class ConcurrencyLimit:
    """A number from 1 to `most`."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._limit = float(min(_FIRST, most))
        self._fastest = float("inf")  # seconds, the mean of a round
        self._round: list[float] = []
        self._num_rounds = 0  # since the last probe began
        self._before_probe = 0.0  # the limit then; 0 = no probe is under way
        self._answers_since_cut = 0
        self._is_starting = True  # grows by halves until something speaks against it

    @property
    def current(self) -> int:
        return int(self._limit)

    def answered(self, seconds: float) -> None:
        """A request of usual size took so long."""
        self._answers_since_cut += 1
        self._round.append(seconds)
        if len(self._round) >= max(4, self.current):
            mean = sum(self._round) / len(self._round)
            self._round.clear()
            self._num_rounds += 1
            if not self._probe(mean):
                self._adapt(mean)

    def refused(self) -> None:
        """The server has too much to do. What was in flight at the last cut says nothing new."""
        self._round.clear()
        self._is_starting = False
        if self._answers_since_cut >= 0:
            self._answers_since_cut = -self.current
            self._limit = max(1.0, self._limit * _KEPT_AFTER_REFUSAL)
            self._before_probe = 0.0
        else:
            self._answers_since_cut += 1

    def _probe(self, mean: float) -> bool:
        """Whether this round belonged to a probe."""
        if self._before_probe and self._num_rounds >= 2:
            self._fastest = mean
            self._limit, self._before_probe = self._before_probe, 0.0
            return True
        if self._num_rounds >= _PROBE_EVERY and self._limit > _FLOOR:
            self._num_rounds = 0
            self._before_probe = self._limit
            self._limit = max(_FLOOR, self._limit / 2)
        return self._before_probe > 0

    def _adapt(self, mean: float) -> None:
        self._fastest = min(self._fastest, mean)
        waiting = self._limit * (1 - self._fastest / mean) if mean > 0 else 0.0
        if waiting > _MANY_WAIT:
            self._is_starting = False
            self._limit = max(min(self._limit, _FLOOR), self._limit - 1)
        elif waiting < _FEW_WAIT:
            self._limit = min(self._most, self._limit * 1.5 if self._is_starting else self._limit + 1)
