"""What API keys may have: their places on the shared page, their weights, and what of the waiting work goes first."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from server.requests.admission.key_places import KeyPlaces
from server.settings.api_keys import ApiKey


@dataclass(frozen=True, slots=True)
class KeyShare:
    """One key."""

    index: int  # its place on the shared page, and what batch managers know it by
    weight: float = 1.0
    tokens_per_minute: int | None = None  # None = no ceiling
    owner: int = 0  # what its place says of whose it is, as long as it is not another key's


ANYBODY = KeyShare(0)  # where no request needs a key


@dataclass(frozen=True, slots=True)
class Turn:
    """Where a key stands among those that have work here now."""

    ahead: float  # what part of the waiting tokens goes before the end of its own, from 0 to 1
    of_engines: float  # the part of the engines that is its own, from 0 to 1
    is_over: bool  # whether it has more than that part of what is waiting


class KeyShares:
    """All keys. One that is not known counts as the first."""

    def __init__(self, keys: Sequence[ApiKey], places: KeyPlaces) -> None:
        self._places = places
        self._by_name: dict[str, KeyShare] = {}
        self._weights: NDArray[np.float64] = np.ones(places.num_places)  # by place
        if keys:
            self.renew(keys)

    def renew(self, keys: Sequence[ApiKey]) -> None:
        """These are the keys from now on."""
        places = self._places.of([key.name for key in keys])
        self._by_name = {
            key.name: KeyShare(place, key.weight, key.tokens_per_minute, self._places.owner(place))
            for key, place in ((key, places[key.name]) for key in keys)
        }
        for share in self._by_name.values():
            self._weights[share.index] = share.weight

    @property
    def are_several(self) -> bool:
        """Whether there may be anything to share. Never changes, so that what was counted is uncounted too."""
        return len(self._weights) > 1

    def of(self, name: str) -> KeyShare:
        """The share of the key with this name; "" where none is needed."""
        return self._by_name.get(name, ANYBODY)

    def turn(self, key: KeyShare, num_tokens: int, queued: NDArray[np.int64]) -> Turn:
        """Where a key stands that asks for so many tokens more; `queued` are those of each key, int64 [K].

        Batch managers let keys take turns by weight, so until a key's last token is computed, each other key gets as
        much in proportion, or all it has if that is less.
        """
        weights = self._weights
        own = int(queued[key.index]) + num_tokens
        total = int(queued.sum())
        ahead = float(np.minimum(queued, weights * (own / key.weight)).sum())
        active = queued > 0
        active[key.index] = True
        of_engines = key.weight / float(weights[active].sum())
        return Turn(ahead / total if total else 1.0, of_engines, int(queued[key.index]) > of_engines * total)
