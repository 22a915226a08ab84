"""docs/flags.md, made from the settings by `make docs`."""

import textwrap

from server.settings.flag import PREFIX, Flag, flags_of
from server.settings.model import ModelSettings
from server.settings.precedence import CONFIG
from server.settings.settings import GROUPS, server_flags

_WIDTH = 120
_HEAD = f"""# Flags

The flags of `embedline serve`. `make docs` makes this page from the source.

A value is taken from the command line, else from the environment, else from the file that `--config` names (or the
variable `{CONFIG}`), else the default. Variables begin with `{PREFIX}`; those that text-embeddings-inference
reads too may go without, and count where the one with `{PREFIX}` is not set. The log names each one that was read, and
each with `{PREFIX}` that is no flag's. An empty variable counts as unset. A wrong value ends the start with one line
that names the flag, and exit code 2. Flags marked ◆ belong to a model.

## Several models

Repeat `--model-id`, as in `--model-id A --served-model-name a --model-id B --served-model-name b`. The nth name and the
nth revision belong to the nth model; all other flags apply to every model. A variable such as `MODEL_ID` names one
model. If models differ in more, use a file. Clients choose by the served name. An unknown name is answered with 404,
and a model that is still loading with 503.

## A file

TOML, with the flags' names as keys (dashes or underscores) and values in TOML's own types. Each of several models is a
`[[model]]` table with its own flags ◆. A flag ◆ at the top applies to every model whose table does not set it. On the
command line or in the environment it applies to all of them. With tables, `model-id`, `revision` and
`served-model-name` may appear only in the tables.

```toml
port = 8080
api-key-file = "/run/secrets/embedline"
max-client-batch-size = 512

[[model]]
model-id = "sentence-transformers/all-MiniLM-L6-v2"
served-model-name = "small"

[[model]]
model-id = "./models/multilingual"
served-model-name = "multilingual"
default-prompt-name = "query"
max-batch-tokens = 4096
```
"""


def page() -> str:
    """Markdown."""
    of_model = {flag.name for flag in flags_of(ModelSettings)}
    flags = [*flags_of(ModelSettings), *server_flags()]
    sections = []
    for group in GROUPS:
        entries = [_entry(flag, flag.name in of_model) for flag in flags if flag.group == group]
        sections.append("\n".join([f"## {group}\n", *entries]))
    return "\n".join([_HEAD, *sections])


def _entry(flag: Flag, is_models: bool) -> str:
    names = ", ".join(f"`{name}`" for name in flag.spellings)
    facts = [
        f"default {flag.default_text or f'`{flag.shown_default}`'}" if flag.shown_default else "not set by default"
    ]
    if flag.one_of:
        facts.append("one of " + ", ".join(f"`{word}`" for word in flag.one_of))
    if flag.variables:
        facts.append("variable " + " or ".join(f"`{variable}`" for variable in flag.variables))
    text = textwrap.fill(flag.help, _WIDTH, break_on_hyphens=False, initial_indent="  ", subsequent_indent="  ")
    return f"- **{names}**{' ◆' if is_models else ''} · {' · '.join(facts)}\n\n{text}\n"
