"""What can go wrong with a store. Each class is one answer to whoever asked."""


class StoreError(Exception):
    """A store could not do what it was asked for."""


class StoreFull(StoreError):
    """No room: the quota, the queue's limit or the disk. Nothing of this call was kept; the next may find room."""


class StoreUnavailable(StoreError):
    """The store can't be reached, or is closed. Whether this call was kept is not known."""


class StoreUnusable(StoreError):
    """The store can't be opened: its place is another's, of another version, or without rights. Says what to do."""


class IdempotencyConflict(StoreError):
    """An earlier request of this owner has the same key and another content."""
