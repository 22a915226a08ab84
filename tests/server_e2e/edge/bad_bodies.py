"""Forty malformed bodies for OpenAI's route and TEI's, and the status and type of error that each answers with."""

from dataclasses import dataclass

SECRET = "QXZJ-9173-secret"  # in no message of ours


@dataclass(frozen=True)
class Dialect:
    path: str
    field: str  # where the inputs are

    def body(self, inputs: bytes, *rest: bytes) -> bytes:
        return b"{" + b",".join([b'"%b":%b' % (self.field.encode(), inputs), *rest]) + b"}"


OPENAI = Dialect("/v1/embeddings", "input")
TEI = Dialect("/embed", "inputs")
TEXT = b'"' + SECRET.encode() + b'"'
DEEP_LISTS, DEEP_OBJECTS = b"[" * 64 + b"]" * 64, b'{"a":' * 64 + b"1" + b"}" * 64
MANY = b"[" + b",".join([TEXT] * 2049) + b"]"

# inputs, other fields; the status from OpenAI's route, the status and the type from TEI's
Case = tuple[bytes, list[bytes], int, int, str]
CASES: list[Case] = [
    # types
    (b"5", [], 400, 422, "Validation"),
    (b"true", [], 400, 422, "Validation"),
    (b"null", [], 400, 422, "Validation"),
    (b'{"text":%b}' % TEXT, [], 400, 422, "Validation"),
    (b"[%b,5]" % TEXT, [], 400, 422, "Validation"),
    (b"[5,%b]" % TEXT, [], 400, 422, "Validation"),
    (b"[[5],[%b]]" % TEXT, [], 400, 422, "Validation"),
    (b"[[[5]]]", [], 400, 422, "Validation"),
    (b"[5.5]", [], 400, 422, "Validation"),
    (b"[true]", [], 400, 422, "Validation"),
    (b"[null]", [], 400, 422, "Validation"),
    (b"[-1]", [], 400, 422, "Validation"),
    (b"[99999999]", [], 400, 422, "Validation"),
    (TEXT, [b'"dimensions":%b' % TEXT], 400, 422, "Validation"),
    (TEXT, [b'"dimensions":-1'], 400, 422, "Validation"),
    (TEXT, [b'"dimensions":-4'], 400, 422, "Validation"),
    (TEXT, [b'"dimensions":1000000'], 400, 422, "Validation"),
    (TEXT, [b'"dimensions":1.5'], 400, 422, "Validation"),
    (TEXT, [b'"dimensions":[4]'], 400, 422, "Validation"),
    (TEXT, [b'"prompt_name":%b' % TEXT], 400, 422, "Validation"),
    (MANY, [], 400, 422, "Validation"),
    # nothing in it
    (b'""', [], 400, 400, "Empty"),
    (b"[]", [], 400, 400, "Empty"),
    (b'[%b,""]' % TEXT, [], 400, 400, "Empty"),
    (b"[[101,5,102],[]]", [], 400, 400, "Empty"),
    # what JSON is not
    (b"NaN", [], 400, 400, "Validation"),
    (b"[NaN]", [], 400, 400, "Validation"),
    (b"[Infinity]", [], 400, 400, "Validation"),
    (TEXT, [b'"dimensions":NaN'], 400, 400, "Validation"),
    (b"[1e999]", [], 400, 422, "Validation"),
    (TEXT, [b'"dimensions":1e999'], 400, 422, "Validation"),
    (b'"\\ud800"', [], 400, 400, "Validation"),
    (b'["a","\\udc00 %b"]' % SECRET.encode(), [], 400, 400, "Validation"),
    (b'"\xed\xa0\x80"', [], 400, 400, "Validation"),
    (b'"\xff"', [], 400, 400, "Validation"),
    (b'"\x00"', [], 400, 400, "Validation"),
    (b"'%b'" % SECRET.encode(), [], 400, 400, "Validation"),
    (TEXT, [b'"user":"a",'], 400, 400, "Validation"),
    # too much of it
    (TEXT, [b'"other":' + DEEP_LISTS], 400, 400, "Validation"),
    (TEXT, [b'"other":' + DEEP_OBJECTS], 400, 400, "Validation"),
    (b"[" * 65 + b"]" * 65, [], 400, 400, "Validation"),
    (b"[" + b"1" * 100_000 + b"]", [], 400, 422, "Validation"),
    (TEXT, [b'"dimensions":' + b"1" * 100_000], 400, 422, "Validation"),
]
