"""What becomes of token ids: taken, refused, or made texts, as --token-ids says."""

import asyncio
import base64
import hashlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from server.requests import embeddings
from server.requests.errors import EmptyInput, InvalidRequest, RequestError
from server.requests.given_ids import GivenIds, TokenIdsRule
from server.requests.pipeline import Pipeline
from server.requests.work import Trace
from tests.server.edge import Edge
from tests.server.requests.embed_requests import a_request
from tokenizer_pool import cl100k
from tokenizer_pool.tasks import Token

VOCABULARY = {1: b"the ", 2: b"fer", 3: b"ry", 4: "é".encode()[:1], 5: "é".encode()[1:]}


def framed(first: list[int], last: list[int]) -> list[list[Token]]:
    special = lambda token_id: Token(token_id, "", True, None, None)  # noqa: E731
    return [[*map(special, first), Token(7, "a", False, 0, 1), *map(special, last)]]


def submitted(
    rule: TokenIdsRule,
    items: Any,
    *,
    frame: tuple[list[int], list[int]] = ([10], [11]),
    vocabulary: Mapping[int, bytes] | None = VOCABULARY,
    times: int = 1,
    **fields: Any,
) -> tuple[Edge, Trace]:
    """What reaches the pool and the managers."""

    async def run() -> tuple[Edge, Trace]:
        edge, trace = Edge(), Trace()

        async def details(asked: Any, **how: Any) -> list[list[Token]]:
            edge.tokenizers.asked.append((("details",), how))
            return framed(*frame)

        edge.tokenizers.tokenize_details = details  # type: ignore[method-assign, assignment]
        given = GivenIds(rule, vocabulary)
        pipeline = Pipeline(edge.admission, cast(Any, edge.tokenizers), cast(Any, edge.managers), given_ids=given)
        for _ in range(times):
            await pipeline.embed(a_request(items=items, **fields), trace)
        return edge, trace

    return asyncio.run(run())


def error(rule: TokenIdsRule, token_ids: Any, **more: Any) -> RequestError:
    with pytest.raises(RequestError) as refused:
        submitted(rule, token_ids, **more)
    return refused.value


async def test_items_that_may_fail_alone_have_their_ids_decoded_too() -> None:
    edge = Edge()
    given = GivenIds(TokenIdsRule.CL100K, VOCABULARY)
    pipeline = Pipeline(edge.admission, cast(Any, edge.tokenizers), cast(Any, edge.managers), given_ids=given)
    request = a_request(items=[[1, 2, 3], [], [2, 3]], allows_errors=True)
    edge, embedded = edge, await embeddings.embed_any(pipeline, request, Trace())
    assert edge.tokenizers.asked[0][0] == ["the ferry", "ferry"]
    assert embedded.rows[:, 0].tolist() == [9, 0, 5]
    assert [(index, type(found), found.param) for index, found in (embedded.failed or {}).items()] == [
        (1, EmptyInput, "input[1]")
    ]


def ids_of(edge: Edge) -> list[int]:
    ids: list[int] = np.frombuffer(bytes(edge.managers.submitted[0].token_ids), np.int32).tolist()
    return ids


@pytest.mark.holds("Token ids")
@pytest.mark.parametrize(
    ("frame", "token_ids"),
    [
        (([10], [11]), [[10, 5, 11], [10, 11]]),
        (([], [11]), [[5, 11], [11]]),  # decoders often have an end only
        (([10], []), [[10, 5]]),
        (([10, 12], [11, 13]), [[10, 12, 5, 11, 13]]),
        (([], []), [[5, 6]]),  # nothing to tell by
    ],
)
def test_native_ids_go_as_they_stand(frame: Any, token_ids: list[list[int]]) -> None:
    edge, trace = submitted(TokenIdsRule.NATIVE, token_ids, frame=frame)
    assert ids_of(edge) == [token_id for each in token_ids for token_id in each]
    assert not trace.are_ids_decoded


@pytest.mark.holds("Token ids")
@pytest.mark.parametrize("token_ids", [[[5, 6]], [[10, 5, 11], [10, 5]], [[5, 11]], [[11, 5, 10]], [[10]]])
def test_other_ids_are_refused_with_both_fixes(token_ids: list[list[int]]) -> None:
    refused = error(TokenIdsRule.NATIVE, token_ids)
    assert type(refused) is InvalidRequest
    assert refused.param == f"input[{len(token_ids) - 1}]"
    assert "check_embedding_ctx_length=False" in refused.message
    assert "--token-ids cl100k" in refused.message


def test_the_model_is_asked_once_for_its_special_tokens() -> None:
    edge, _ = submitted(TokenIdsRule.NATIVE, [[10, 5, 11]], times=3)
    assert [what for what, _ in edge.tokenizers.asked] == [("details",)]


def test_no_ids_at_all_are_refused_as_such() -> None:
    assert "has no tokens" in error(TokenIdsRule.NATIVE, [[10, 5, 11], []]).message
    assert type(error(TokenIdsRule.CL100K, [[1], []])) is EmptyInput


@pytest.mark.holds("Token ids")
def test_cl100k_ids_become_texts_with_the_prompt_before_them() -> None:
    edge, trace = submitted(TokenIdsRule.CL100K, [[1, 2, 3], [4, 5, 4]], prompt="q: ")
    ((texts, how),) = edge.tokenizers.asked
    assert (texts, how["prompt"]) == (["the ferry", "é\ufffd"], "q: ")
    assert trace.are_ids_decoded


def test_texts_beside_cl100k_ids_stay() -> None:
    edge, _ = submitted(TokenIdsRule.CL100K, ["a", [2, 3]])
    assert edge.tokenizers.asked[0][0] == ["a", "ferry"]


@pytest.mark.parametrize("token_ids", [[[1], [6]], [[1], [-1]], [[1], [10**30]]])
def test_ids_that_cl100k_does_not_have_are_refused(token_ids: list[list[int]]) -> None:
    refused = error(TokenIdsRule.CL100K, token_ids)
    assert (refused.param, "cl100k_base" in refused.message) == ("input[1]", True)


@pytest.mark.holds("Token ids")
def test_any_and_reject() -> None:
    assert ids_of(submitted(TokenIdsRule.ANY, [[5, 6]])[0]) == [5, 6]
    refused = error(TokenIdsRule.REJECT, [[10, 5, 11]])
    assert (refused.param, "--token-ids" in refused.message) == ("input", True)


def test_the_vocabulary_is_read_and_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "cl100k_base.tiktoken"
    content = b"".join(b"%b %d\n" % (base64.b64encode(token), number) for number, token in VOCABULARY.items())
    file.write_bytes(content)
    with pytest.raises(cl100k.VocabularyError, match="is not cl100k_base"):
        cl100k.read(file)
    with pytest.raises(cl100k.VocabularyError, match="can't be read"):
        cl100k.read(tmp_path / "nowhere")
    monkeypatch.setattr(cl100k, "SHA256", hashlib.sha256(content).hexdigest())
    assert cl100k.read(file) == VOCABULARY
    assert cl100k.text_of(VOCABULARY, [1, 2], max_bytes=100) == "the fer"


@pytest.mark.holds("Token ids")
def test_the_extra_has_the_vocabulary_and_is_not_imported() -> None:
    before = set(sys.modules)
    vocabulary = cl100k.vocabulary_for(None)
    assert cl100k.text_of(vocabulary, [15339, 1917], max_bytes=100) == "hello world"
    assert (len(vocabulary), max(vocabulary)) == (100_256, 100_255)
    assert not {name for name in set(sys.modules) - before if name.startswith("tiktoken")}


def test_the_text_of_many_ids_is_made_no_further_than_it_can_count() -> None:
    """Four more bytes than the limit, so that the tokenizer sees that the text is longer."""
    assert cl100k.text_of(VOCABULARY, [1] * 1000 + [7], max_bytes=10) == "the the the "
    assert cl100k.text_of(VOCABULARY, [7] + [2] * 1000, max_bytes=5, keeps_end=True) == "ferfer"
