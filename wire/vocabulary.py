"""The two words every package needs, lying at the bottom of the import order."""

import enum


class RequestClass(enum.IntEnum):
    """How urgent a piece of work is. Also the last index of the shared page's arrays."""

    INTERACTIVE = 0
    BULK = 1


NUM_CLASSES = len(RequestClass)
