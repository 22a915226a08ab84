"""The requests that are sent: texts, and whole HTTP requests made of them before the clock starts.

The texts are from a file, or English ones of mixed lengths, as people's are, that depend on the seed alone. It also
reads from an answer how many tokens its server counted.
"""

import json
import math
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from embedline.bench.connection import HttpAnswer
from embedline.bench.options import Options, OptionsError, Target

# where servers say how many tokens they read: Embedline with raw bytes, and the native routes of TEI
_TOKEN_HEADERS = (b"x-embedline-prompt-tokens", b"x-compute-tokens")
_USAGE = re.compile(rb'"prompt_tokens"\s*:\s*(\d+)')
_USAGE_WINDOW = 1024  # bytes at either end of a body in which its usage stands
MEDIAN_TOKENS = 40
MIN_TOKENS, MAX_TOKENS = 5, 250
SIGMA = 0.68  # of the logarithm: a tenth of the texts has more than 96 tokens, the mean is 50
_TOKENS_PER_WORD = 1.25  # of these sentences, punctuation counted, in a WordPiece vocabulary of 30,000


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A whole HTTP/1.1 request."""

    payload: bytes
    num_texts: int


def prepare(options: Options, target: Target, texts: Sequence[str]) -> list[HttpRequest]:
    """One request for each `batch_size` texts; the last one is filled up from the first texts."""
    groups = range(0, len(texts), options.batch_size)
    batches = [[texts[(first + n) % len(texts)] for n in range(options.batch_size)] for first in groups]
    headers = _headers(options)
    path = target.prefix + options.route
    return [HttpRequest(post(target, path, _body(options, batch), headers=headers), len(batch)) for batch in batches]


def post(target: Target, path: str, body: bytes, *, headers: Sequence[str] = ()) -> bytes:
    """The bytes of a POST request with a JSON body."""
    lines = [
        f"POST {path} HTTP/1.1",
        f"host: {target.host}:{target.port}",
        "content-type: application/json",
        f"content-length: {len(body)}",
        *headers,
    ]
    return "\r\n".join(lines).encode("ascii") + b"\r\n\r\n" + body


def _headers(options: Options) -> list[str]:
    headers = []
    if options.api_key is not None:
        headers.append(f"authorization: Bearer {options.api_key}")
    if options.request_class is not None:
        headers.append(f"x-embedline-class: {options.request_class}")
    if options.encoding == "bytes":
        headers.append("accept: application/octet-stream")
    return headers


def _body(options: Options, texts: list[str]) -> bytes:
    """A single text goes as a text and not as a list, as most clients send it."""
    asked = texts[0] if options.batch_size == 1 else texts
    if options.route == "/embed":
        return json.dumps({"inputs": asked}).encode()
    return json.dumps({"input": asked, "model": options.model, "encoding_format": options.encoding}).encode()


def num_tokens(answer: HttpAnswer) -> int | None:
    """How many the server counted; None where it doesn't say."""
    for name in _TOKEN_HEADERS:
        if value := answer.headers.get(name):
            return int(value) if value.isdigit() else None
    found = _USAGE.search(answer.body[-_USAGE_WINDOW:]) or _USAGE.search(answer.body[:_USAGE_WINDOW])
    return int(found[1]) if found else None


def read_texts(path: Path) -> list[str]:
    """One text a line, empty lines left out. Raises OptionsError."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except OSError as error:
        raise OptionsError(f"--texts {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise OptionsError(f"--texts {path}: not UTF-8") from None
    texts = [line for line in lines if line.strip()]
    if not texts:
        raise OptionsError(f"--texts {path}: no text in it")
    return texts


def built_in_texts(num: int, *, seed: int) -> list[str]:
    """Log-normal lengths around 40 tokens, from 5 to 250."""
    generator = random.Random(seed)
    return [_text(generator) for _ in range(num)]


def _text(generator: random.Random) -> str:
    drawn = generator.lognormvariate(math.log(MEDIAN_TOKENS), SIGMA)
    num_words = round(min(max(drawn, MIN_TOKENS), MAX_TOKENS) / _TOKENS_PER_WORD)
    words: list[str] = []
    while len(words) < num_words:
        words += generator.choice(SENTENCES).split()
    return " ".join(words[:num_words])


# of mixed lengths, for load that looks like people's texts
SENTENCES = (
    "The ferry leaves at seven.",
    "Please send the invoice again.",
    "Nobody answered the door.",
    "How do I cancel my subscription?",
    "Rain is expected by noon.",
    "My parcel never arrived.",
    "Which train goes to the airport?",
    "The meeting was moved to Thursday.",
    "She keeps bees behind the old mill.",
    "What does the warranty cover?",
    "The battery lasts about nine hours.",
    "Store the paint in a dry, cool place.",
    "Can I change my seat after I have checked in?",
    "He repaired the clock with a bent paper clip.",
    "The recipe asks for two eggs and a pinch of salt.",
    "A lost passport must be reported to the police at once.",
    "The museum is closed on Mondays, except in the school holidays.",
    "We compared three vendors and chose the one with the shortest delivery time.",
    "Turn off the water at the main valve before you loosen the second nut.",
    "The committee will publish its findings before the end of the month.",
    "Customers who pay by card are charged only when the order is shipped.",
    "In spring the river floods the lower meadows and carries off the fences.",
    "The patient reported a mild headache, but no fever and no loss of appetite.",
    "If the light blinks twice, hold the button for ten seconds and let the device start again.",
    "The contract may be ended by either side with a notice of three months to the end of a quarter.",
    "Most of the houses in the old quarter were built of brick, after a fire had destroyed the wooden ones.",
    "Whales sleep with one half of the brain at a time, so that the other half can remember to breathe.",
    "The report shows that sales rose by four percent in the north, while they fell slightly in the south.",
    "An engine that is serviced every year uses less fuel and is far less likely to fail on a cold morning.",
    "Students who miss the examination because of illness can repeat it in autumn if a doctor confirms it.",
    "The old library keeps more than a million volumes, of which only a tenth can be borrowed and taken home.",
    "Before the bridge was opened, people had to wait for hours at the ferry, above all on market days in summer.",
    "Researchers measured the temperature of the lake at twelve depths and found that it had warmed by a degree "
    "since the seventies.",
    "To reset your password, open the link that we have sent to your address, choose a new one, and confirm it with "
    "the code from your phone.",
    "The orchestra had rehearsed the slow movement for weeks, yet on the evening itself the conductor took it "
    "noticeably faster than agreed.",
    "When the price of wheat doubled within a year, bakers in the provinces began to mix barley and beans into "
    "their flour, and the towns complained.",
    "Photosynthesis turns light, water and carbon dioxide into sugar and oxygen, and nearly all life on land depends "
    "on it in one way or another.",
    "The court held that the seller had known of the damp cellar, had said nothing about it, and therefore had to "
    "bear the cost of the repair.",
    "Our kitchen is open from noon until ten, the last orders are taken at half past nine, and dogs are welcome on "
    "the terrace but not indoors.",
    "After two days of snow the pass was closed to lorries, and drivers who had not brought chains were asked to turn "
    "around at the last village.",
    "A good index makes a slow query fast, but every index has to be kept up to date, and a table with too many of "
    "them becomes slow to write.",
    "The island has no airport; visitors come by boat from the mainland twice a week, and in winter, when the sea is "
    "rough, sometimes not at all.",
)
