"""Which place of the shared page each API key has: the same for all frontends, for as long as the key is there."""

import hashlib
from collections import deque
from collections.abc import Sequence

from wire.page import Page

_LONG_AGO = -2  # a minute that is over, and the one after it too


class KeyPlaces:
    """The page itself says whose each place is. So a frontend that was restarted, or has missed a change of the key
    file, finds what the others have."""

    def __init__(self, page: Page) -> None:
        self._page = page

    @property
    def num_places(self) -> int:
        """How many there are."""
        return self._page.num_keys

    def of(self, names: Sequence[str]) -> dict[str, int]:
        """The place of each of these keys, which are all that there are now.

        A key without one takes a place that nobody ever had, or else that of a key that is gone. If there are more keys
        than places, the last place is for several.
        """
        hashes = {name: _hash(name) for name in names}
        with self._page.locked():
            held = self._page.key_names.tolist()
            places = {one: place for place, one in enumerate(held) if one}
            is_taken = set(hashes.values())
            free = [place for place, one in enumerate(held) if one not in is_taken]
            unused = deque(sorted(free, key=lambda place: held[place] != 0))
            for one in hashes.values():
                if one not in places and unused:
                    places[one] = unused.popleft()
                    self._page.key_names[places[one]] = one
                    self._page.spent_minute[:, places[one]] = _LONG_AGO  # another key has spent that
            return {name: places.get(one, self.num_places - 1) for name, one in hashes.items()}

    def owner(self, place: int) -> int:
        """A number for the key whose place it is."""
        return int(self._page.key_names[place])


def _hash(name: str) -> int:
    """63 bits, never 0."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little") >> 1 or 1
