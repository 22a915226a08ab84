"""A text in which a frontend with a tokenizer inside died is refused by the next one; its neighbours are not."""

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.server_e2e.running import ROOT
from tests.tokenizer_pool.builders import bert_folder
from tokenizer_pool.guarded import REFUSED_SECONDS, TextQuarantine, of_each
from tokenizer_pool.messages import TextRefusal, TextRefused, TokenizerSpec
from tokenizer_pool.tasks import Chat, ScanPiece
from tokenizer_pool.tokenizer import Tokenizer
from wire.page import Page
from wire.vocabulary import RequestClass

pytestmark = pytest.mark.holds("When a process dies")

DIES = """
import os, sys
from tokenizer_pool.guarded import TextQuarantine, of_each
from wire.page import Page

def upper(texts):
    if "the deadly one" in texts:
        os._exit(9)
    return [text.upper() for text in texts]

quarantine = TextQuarantine(Page.attach(int(sys.argv[1])), frontend=1, model=0)
quarantine.begin(0.0)
of_each(upper, ["before it", "the deadly one", "behind it"], quarantine)
"""


def upper(texts: Sequence[str]) -> list[str]:
    return [text.upper() for text in texts]


def new_page() -> Page:
    return Page.create(num_frontends=2, num_managers=1, num_models=2)


def begun(page: Page, *, frontend: int = 1, model: int = 0, now: float | None = None) -> TextQuarantine:
    quarantine = TextQuarantine(page, frontend=frontend, model=model)
    quarantine.begin(time.monotonic() if now is None else now)
    return quarantine


def died_in(item: object, *, now: float | None = None) -> Page:
    """The page after a process died in this."""
    page = new_page()
    page.tokenizing[1] = begun(page)._hash(item)
    begun(page, now=now)
    return page


def refused_at(function: Callable[[], object]) -> int:
    with pytest.raises(TextRefused) as refused:
        function()
    assert refused.value.reason is TextRefusal.FAILED
    return refused.value.index


def test_the_text_in_which_a_process_died_is_refused_and_its_neighbours_are_answered() -> None:
    page = new_page()
    python = [sys.executable, "-P", "-c", DIES, str(page.fd)]
    assert subprocess.run(python, env={"PYTHONPATH": str(ROOT)}, pass_fds=[page.fd], check=False).returncode == 9
    quarantine = begun(page)
    texts = ["behind it", "before it", "the deadly one"]
    assert refused_at(lambda: of_each(upper, texts, quarantine)) == 2
    assert of_each(upper, texts[:2], quarantine) == ["BEHIND IT", "BEFORE IT"]
    assert of_each(upper, texts, begun(page, model=1)) == upper(texts)
    assert refused_at(lambda: of_each(upper, texts, begun(page, frontend=0))) == 2  # so no frontend dies of it again
    assert not page.tokenizing.any()


def test_it_is_taken_again_after_ten_minutes() -> None:
    page = died_in("the deadly one", now=time.monotonic() - REFUSED_SECONDS)
    assert of_each(upper, ["the deadly one"], begun(page)) == ["THE DEADLY ONE"]


def test_only_as_many_are_remembered_as_the_page_has_room_for() -> None:
    page = new_page()
    quarantine = begun(page)
    num_refused = len(page.refused)
    for number in range(num_refused + 1):
        page.tokenizing[1] = quarantine._hash(f"text {number}")
        begun(page, now=time.monotonic() + number)
    texts = [f"text {number}" for number in range(num_refused + 1)]
    assert of_each(upper, texts[:1], quarantine) == ["TEXT 0"]
    assert [refused_at(lambda text=text: of_each(upper, [text], quarantine)) for text in texts[1:]] == [0] * num_refused  # type: ignore[misc]


def test_a_text_that_the_library_does_not_take_and_one_before_users_texts_leave_nothing() -> None:
    page = new_page()
    seen: list[bool] = []

    def noted(texts: Sequence[str]) -> list[str]:
        seen.append(bool(page.tokenizing[1]))
        if "bad" in texts:
            raise ValueError
        return upper(texts)

    quarantine = TextQuarantine(page, frontend=1, model=0)
    of_each(noted, ["warm up"], quarantine)
    assert seen == [False]
    quarantine.begin(time.monotonic())
    assert refused_at(lambda: of_each(noted, ["bad"], quarantine)) == 0
    assert seen[1:] == [True, True]  # the second time to find which text it is
    assert not page.tokenizing.any()


CHATS = [Chat(f'[{{"role": "user", "content": "{text}"}}]') for text in ("a", "the harbour")]
CALLS: dict[str, tuple[object, int, Callable[[Tokenizer], object]]] = {
    "ids": ("the harbour", 1, lambda one: one.encode(["a", "the harbour"])),
    "prompt": ("the harbour", 1, lambda one: one.encode(["a", "harbour"], prompt="the ")),
    "first of a pair": ("the harbour", 1, lambda one: one.encode(["a", "the harbour"], pair_texts=["b", "c"])),
    "second of a pair": ("the harbour", 1, lambda one: one.encode(["a", "b"], pair_texts=["c", "the harbour"])),
    "tokens": ("the harbour", 1, lambda one: one.details(["a", "the harbour"])),
    "chat": (CHATS[1], 1, lambda one: one.chat_template.render(CHATS)),
    "slice": ("the harbour", 0, lambda one: one.scan(ScanPiece(0, RequestClass.BULK, "the harbour", 0, True))),
}


@pytest.mark.parametrize(("text", "index", "call"), CALLS.values(), ids=CALLS)
def test_it_is_refused_whatever_is_asked_of_it(
    text: object, index: int, call: Callable[[Tokenizer], object], tmp_path: Path
) -> None:
    spec = TokenizerSpec(folder=str(bert_folder(tmp_path)), max_seqlen=16)
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content }}")
    call(Tokenizer(spec, begun(new_page())))
    assert refused_at(lambda: call(Tokenizer(spec, begun(died_in(text))))) == index
