"""What happens to texts that are too long, in every client's spelling."""

from typing import Any

import pytest

from engine.types import OutputKind
from server.dialects.table import ROUTES
from server.requests.errors import InvalidRequest
from tests.server.edge import decoded, one_model
from tokenizer_pool.messages import Truncation

NONE, RIGHT, LEFT = Truncation.NONE, Truncation.RIGHT, Truncation.LEFT
PATHS = [route.path for route in ROUTES if "truncation_side" in route.body.__struct_fields__] + ["/similarity"]


def asked(path: str, own: Truncation = RIGHT, **fields: Any) -> Any:
    outputs = OutputKind(sum(OutputKind))
    given = {"parameters": fields} if path == "/similarity" else fields
    return decoded(path, models=one_model(truncation=own, outputs=outputs), **given)


@pytest.mark.holds("Truncation")
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("own", "fields", "truncation", "max_tokens"),
    [
        (RIGHT, {}, RIGHT, None),
        (NONE, {}, NONE, None),
        (RIGHT, {"truncate": False}, NONE, None),
        (NONE, {"truncate": True}, RIGHT, None),
        (NONE, {"truncate": "END"}, RIGHT, None),
        (NONE, {"truncate": "START"}, LEFT, None),
        (RIGHT, {"truncate": "NONE"}, NONE, None),
        (RIGHT, {"truncate": "START", "truncation_side": "left"}, LEFT, None),
        (NONE, {"truncation": True}, RIGHT, None),
        (RIGHT, {"truncation": False}, NONE, None),
        (RIGHT, {"truncation_direction": "Left"}, LEFT, None),
        (RIGHT, {"truncation_side": "left"}, LEFT, None),
        (NONE, {"truncation_side": "left"}, NONE, None),
        (NONE, {"truncate_prompt_tokens": 9}, RIGHT, 9),
        (NONE, {"truncate_prompt_tokens": 16, "truncation_side": "left"}, LEFT, 16),
        (NONE, {"truncate_prompt_tokens": -1}, RIGHT, None),
        (RIGHT, {"max_tokens": 9}, RIGHT, 9),
        (RIGHT, {"max_tokens": 9, "truncate": "NONE"}, NONE, 9),
        (RIGHT, {"max_tokens": 100_000}, RIGHT, 100_000),
    ],
)
def test_every_spelling(
    path: str, own: Truncation, fields: dict[str, Any], truncation: Truncation, max_tokens: int | None
) -> None:
    request = asked(path, own, **fields)
    assert (request.truncation, request.max_tokens) == (truncation, max_tokens)


@pytest.mark.holds("Truncation")
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"truncate": "MIDDLE"}, "truncate"),
        ({"truncate": "end"}, "truncate"),
        ({"truncate": 1}, "truncate"),
        ({"truncate": "START", "truncation_direction": "right"}, "truncate"),
        ({"truncate": True, "truncation": False}, "truncation"),
        ({"truncation": "yes"}, "truncation"),
        ({"truncation_side": "LEFT"}, "truncation_side"),
        ({"truncation_side": ""}, "truncation_side"),
        ({"truncation_side": "left", "truncation_direction": "left"}, "truncation_side"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": 17}, "truncate_prompt_tokens"),  # one more than the model takes
        ({"truncate_prompt_tokens": 9, "max_tokens": 9}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
    ],
)
def test_what_can_not_be_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    for path in PATHS:
        with pytest.raises(InvalidRequest) as refused:
            asked(path, **fields)
        assert (refused.value.param or "").removeprefix("parameters.") == param
        assert refused.value.message.startswith(str(refused.value.param))
