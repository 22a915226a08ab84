"""Options out of bounds are named by their flag."""

from pathlib import Path
from typing import Any

import pytest

from embedline.bench.options import Options, OptionsError, Target, parse_url
from embedline.bench.requests import built_in_texts, read_texts


@pytest.mark.parametrize(
    ("fields", "flag"),
    [
        ({"concurrency": 0}, "--concurrency"),
        ({"batch_size": 0}, "--batch-size"),
        ({"rate": 0.0}, "--rate"),
        ({"rate": float("inf")}, "--rate"),
        ({"duration": float("nan")}, "--duration"),
        ({"duration": -1.0}, "--duration"),
        ({"requests": 0}, "--requests"),
        ({"warmup": -0.1}, "--warmup"),
        ({"timeout": 0.0}, "--timeout"),
        ({"seed": -1}, "--seed"),
        ({"route": "/embeddings"}, "--route"),
        ({"encoding": "int8"}, "--encoding"),
        ({"encoding": "base64", "route": "/embed"}, "--encoding"),
        ({"arrivals": "bursts"}, "--arrivals"),
        ({"request_class": "fast"}, "--class"),
        ({"api_key": "a\r\nx-evil: 1"}, "--api-key"),
        ({"url": "ftp://localhost"}, "URL"),
        ({"url": "http://"}, "URL"),
        ({"url": "http://localhost:99999"}, "URL"),
        ({"url": "http://localhost/a b"}, "URL"),
    ],
)
def test_a_wrong_option_is_named(fields: dict[str, Any], flag: str) -> None:
    with pytest.raises(OptionsError) as caught:
        Options(**{"url": "http://localhost:1", **fields})
    message = str(caught.value)
    assert message.startswith(flag)
    assert "\n" not in message


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("http://127.0.0.1:8080", Target("127.0.0.1", 8080, False, "")),
        ("localhost:8080/", Target("localhost", 8080, False, "")),
        ("https://example.org/models/a/", Target("example.org", 443, True, "/models/a")),
        ("http://[::1]:9", Target("::1", 9, False, "")),
    ],
)
def test_urls(url: str, target: Target) -> None:
    assert parse_url(url) == target


def test_texts_of_a_file_are_its_lines(tmp_path: Path) -> None:
    (tmp_path / "texts").write_text("one\n\n two \nthree")
    assert read_texts(tmp_path / "texts") == ["one", " two ", "three"]


@pytest.mark.parametrize("content", [None, b"", b"\n \n", b"\xff\xfe"])
def test_a_file_without_texts_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "texts"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(OptionsError, match=r"^--texts "):
        read_texts(path)


def test_built_in_texts_are_the_same_for_the_same_seed_and_mostly_differ() -> None:
    texts = built_in_texts(2000, seed=4)
    assert texts == built_in_texts(2000, seed=4)
    assert texts != built_in_texts(2000, seed=5)
    assert len(set(texts)) > 1800


def test_built_in_texts_have_log_normal_lengths() -> None:
    counts = sorted(len(text.split()) * 1.25 for text in built_in_texts(4000, seed=0))
    assert 38 < counts[2000] < 42
    assert 88 < counts[3600] < 105
    assert counts[0] >= 4
    assert counts[-1] <= 250
