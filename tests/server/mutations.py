"""Changes of single bytes in a body, which leave much of it as JSON."""

import random

_GRAINS = (
    *(b'"', b"\\", b"[", b"]", b"{", b"}", b",", b":", b"-", b"1e999", b"NaN", b"null", b"true"),
    *(b"\\ud800", b"\xff", b"\0", b"\xef\xbb\xbf"),
)


def mutate(rng: random.Random, body: bytearray) -> None:
    """Some bytes, anywhere."""
    at = rng.randrange(len(body) + 1)
    match rng.randrange(5):
        case 0:
            body[at : at + 1] = rng.randbytes(1)
        case 1:
            body[at:at] = rng.choice(_GRAINS)
        case 2:
            del body[at : at + rng.randint(1, 8)]
        case 3:
            body[at:at] = body[max(0, at - rng.randint(1, 30)) : at] * rng.randint(1, 20)
        case 4:
            del body[at:]
