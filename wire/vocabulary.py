"""The classes of requests, which every package needs, and their number."""

import enum


class RequestClass(enum.IntEnum):
    """How urgent a piece of work is. Also the last index of the shared page's arrays."""

    INTERACTIVE = 0
    BULK = 1


NUM_CLASSES = len(RequestClass)
