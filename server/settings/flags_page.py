"""The page of all flags, made from the settings: `python -m server.settings.flags_page > docs/flags.md`."""

import textwrap

from server.settings.config_file import VARIABLE
from server.settings.flag import GROUPS, Flag, flags_of
from server.settings.model import ModelSettings
from server.settings.settings import Settings

_WIDTH = 120
_HEAD = f"""# Flags

Of `embedline serve`. `python -m server.settings.flags_page` makes this page from the source; a test compares the two.

A value is looked for on the command line, then in the environment, then in the file that `--config` names (or the
variable `{VARIABLE}`), then the default is taken. An empty variable is none. What can't be is answered with one
line that names the flag, and exit code 2. Flags that are marked ◆ belong to a model.

## Several models

`--model-id` repeated, as in `--model-id A --served-model-name a --model-id B --served-model-name b`; the nth name and
the nth revision are the nth model's, and all other flags hold for every model. A variable such as `MODEL_ID` names one
model. Where models differ in more, they stand in a file. Clients choose by the served name; another name is answered
with 404, and a model that is still loading with 503.

## A file

TOML, with the flags' names as keys (dashes or underscores) and values in TOML's own types. Several models are
`[[model]]` tables with flags ◆ of their own; a flag ◆ at the top holds for every model whose table does not give it,
and one on the command line or in the environment for all of them. `model-id`, `revision` and `served-model-name` then
stand in the tables alone.

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
    flags = [*flags_of(ModelSettings), *flags_of(Settings)]
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


if __name__ == "__main__":
    print(page(), end="")
