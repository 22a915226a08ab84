"""The documentation against the source: what a page names is there, and what must be on a page is."""

import ast
import re
from pathlib import Path
from types import ModuleType

import pytest

import batch_manager.messages
import engine.messages
import server.features.rpc
import tokenizer_pool.client
import tokenizer_pool.messages
import tokenizer_pool.worker
from batch_manager.messages import Policy
from server.dialects import answers, tei
from server.dialects.reading import inputs, json_body
from server.dialects.table import ROUTES
from server.http import body as asgi
from server.http import line_streams, request
from server.http.h1 import connection, framing
from server.metrics.gauges import GAUGES, PROCESS_GAUGES
from server.metrics.registry import ALL
from server.requests import errors, pipeline, row_memory, work
from server.settings import settings
from server.settings.flag import flags_of
from server.settings.model import ModelSettings
from server.settings.settings import server_flags
from server.supervisor import supervisor, topology
from server.supervisor import takeover as takeover_messages
from tests.documents import ROOT, examples, flags_in, known_flags, pages, prose
from tests.generated_pages import COMMAND, PACKAGES, held_by, invariants, promises
from tests.generated_pages import PAGES as PAGES_MADE
from tokenizer_pool import guarded, shortening
from wire import control, frames, json_values

ARCHITECTURE = (ROOT / "docs" / "ARCHITECTURE.md").read_text()
WIRE_FORMAT = (ROOT / "docs" / "wire-format.md").read_text()
BEHAVIOUR = (ROOT / "docs" / "behaviour.md").read_text()
OURS = (control, tokenizer_pool.messages, batch_manager.messages, server.features.rpc)
PAGES = [str(page) for page in pages()]
# Pages that name other programs' flags too.
FLAG_PAGES = [f"docs/{name}.md" for name in ("ARCHITECTURE", "api", "behaviour", "models", "quickstart", "tuning")]


def section(title: str, page: str) -> str:
    """What stands below a heading of the second level."""
    _, _, rest = page.partition(f"\n## {title}\n")
    text, _, _ = rest.partition("\n## ")
    assert text, title
    return text


def names_in(path: Path) -> set[str]:
    """Functions, classes and variables of a file as `name`, and those in its classes as `Class.name`."""
    tree = ast.parse(path.read_text())
    found = {name for node in tree.body for name in names_of(node)}
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    return found | {f"{one.name}.{name}" for one in classes for node in one.body for name in names_of(node)}


def names_of(node: ast.stmt) -> list[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.Assign(targets=targets):
            return [target.id for target in targets if isinstance(target, ast.Name)]
    return []


@pytest.mark.parametrize("path", PAGES_MADE)
def test_a_generated_page_is_up_to_date(path: str) -> None:
    is_same = (ROOT / path).read_text() == PAGES_MADE[path]()
    assert is_same, f"{path} is out of date: run `make docs`, which is `{COMMAND}`"


def test_every_invariant_and_every_promise_is_held_by_a_test() -> None:
    titles = [*invariants(), *promises()]

    assert len(invariants()) > 50
    assert len(promises()) > 15
    assert len(set(titles)) == len(titles)
    assert set(titles) == set(held_by()), "a marker `holds` names no title, or a title has no test"


@pytest.mark.holds("Errors")
def test_the_table_of_errors_is_the_sources() -> None:
    written = re.findall(r"^\| (\d+ [^|]+) \| ([^|]+) \| ", section("Errors", BEHAVIOUR), re.MULTILINE)
    assert sorted(written) == sorted(error_cells(kind) for kind in errors.ERRORS)


def error_cells(kind: type[errors.RequestError]) -> tuple[str, str]:
    """The statuses and names of an error on OpenAI's and on TEI's routes, as the table has them."""
    name, code, tei_name = answers.ERROR_NAMES[kind]
    status = errors.ERRORS[kind].status
    is_before_a_route = kind in (
        errors.NoSuchRoute,
        errors.NotFound,
        errors.Conflict,
        errors.WrongMethod,
        errors.HeadTooLarge,
    )
    return (
        f"{status} `{name}`" + (f", `{code}`" if code else ""),
        "as OpenAI's" if is_before_a_route else f"{tei.STATUSES.get(kind, status)} `{tei_name}`",
    )


@pytest.mark.holds("Limits", "When a process dies")
@pytest.mark.parametrize(
    ("words", "value", "expected"),
    [
        ("head | 32 KiB and 100 headers |", (framing.MAX_HEAD_BYTES, framing.MAX_HEADERS), (32_768, 100)),
        ("a head that has begun | 10 s |", connection.Connection.head_seconds, 10),
        ("sent ahead | 32 KiB |", framing.MAX_HEAD_BYTES, 32_768),
        (
            "after its answer | 128 MiB and 30 s |",
            (connection.Connection.max_rest_bytes, connection.Connection.rest_seconds),
            (128 << 20, 30),
        ),
        ("have not read | 128 MiB, divided among the frontends", row_memory.MAX_HELD_BYTES, 128 << 20),
        ("| 16 times that, at least 1 GiB,", (topology._OPEN_PAYLOAD_FACTOR, topology._GIB), (16, 1 << 30)),
        ("nothing of a body comes, on every route | 30 s |", asgi._PIECE_SECONDS, 30),
        ("keeps the server waiting | 30 s; each", asgi._BODY_SECONDS, 30),
        ("each 1,024 bytes that have come give back", asgi._BYTES_PER_SECOND, 1024),
        ("at most 256 processes of each kind", settings.MAX_PROCESSES, 256),
        (
            "an answer of over 64 KiB | 300 s, and a second more for each 262,144 bytes that have been read |",
            (asgi.WRITE_BUFFER_BYTES, connection.Connection.answer_seconds, connection.BYTES_PER_SECOND),
            (65_536, 300, 262_144),
        ),
        ("of a body | 1 MiB | 413", line_streams.MAX_LINE_BYTES, 1 << 20),
        (
            "together, up to 32, and fewer of rows that are large; at most 16 such groups",
            (line_streams._MAX_LINES, line_streams.MAX_OPEN),
            (32, 16),
        ),
        ("objects in a body | 64, the body counted |", json_values.MAX_DEPTH, 64),
        ("a body of over 64 KiB | 262,144 |", (json_body.LARGE_BYTES, json_body.MAX_LISTS), (65_536, 262_144)),
        ("that gives ids | 4,194,304 |", inputs._MAX_IDS, 4_194_304),
        ("bytes of a text | 4,194,304 |", shortening.MAX_TEXT_BYTES, 4_194_304),
        ("`/embed_all` | 256 MiB of float32 |", work.MAX_TOKEN_ROW_BYTES, 256 << 20),
        ("prompts counted | 1,048,576 |", tokenizer_pool.client.MAX_DETAIL_CHARS, 1_048_576),
        ("`/decode` | 1,048,576 |", tokenizer_pool.client.MAX_DECODE_IDS, 1_048_576),
        ("(1 to 86,400,000)", request._MAX_TIMEOUT_MS, 86_400_000),
        ("more than 8 items", pipeline.BULK_ITEMS, 8),
        ("more than 4,096 tokens", pipeline.BULK_TOKENS, 4096),
        ("at one text for 120 s ends itself", tokenizer_pool.worker._MAX_SECONDS, 120),
        ("or three times what the batch should take", supervisor._SLOWER_THAN_PREDICTED, 3),
        ("three tokenizers died on", tokenizer_pool.client._MAX_DEATHS, 3),
        ("refused with 400 for ten minutes, in every request", guarded.REFUSED_SECONDS, 600),
        ("about three tenths", Policy().bulk_share, 0.3),
        ("fails five times in a row", len(supervisor._DELAYS), 5),
        ("again every 15 s", supervisor._DELAYS[-1], 15),
        ("each within 5 s", supervisor._EXIT_SECONDS, 5),
    ],
)
def test_limits_are_as_documented(words: str, value: object, expected: object) -> None:
    assert words in " ".join(BEHAVIOUR.split())
    assert value == expected


@pytest.mark.holds("Limits", "Back-pressure", "When a process dies", "Shutdown")
@pytest.mark.parametrize(("name", "default"), re.findall(r"`(--[\w-]+)` \[([^\]]+)\]", BEHAVIOUR))
def test_defaults_are_as_documented(name: str, default: str) -> None:
    (flag,) = [one for one in (*server_flags(), *flags_of(ModelSettings)) if name in one.spellings]
    number = default.replace(",", "").removesuffix(" s")
    assert flag.shown_default in (number, f"{number}.0")


@pytest.mark.parametrize(
    ("path", "name"),
    re.findall(r"`([a-z][\w/]+\.py):([\w.]+)`", ARCHITECTURE + WIRE_FORMAT),
    ids=lambda value: str(value),
)
def test_a_function_that_is_named_exists(path: str, name: str) -> None:
    assert name in names_in(ROOT / path)


def kinds_in(module: ModuleType) -> dict[int, str]:
    """The frame kinds that a module declares: numbers of 16 bits."""
    named = {
        value: name for name, value in vars(module).items() if name.isupper() and name[0] != "_" and type(value) is int
    }
    return {value: name for value, name in named.items() if value < 1 << 16}


def test_every_kind_of_frame_is_in_the_table() -> None:
    declared = {frames.HELLO: "HELLO"}
    for module in (*OURS, engine.messages, takeover_messages):
        kinds = kinds_in(module)
        assert not declared.keys() & kinds.keys(), "a kind belongs to one package"
        declared |= kinds

    rows = re.findall(r"^\| `0x([0-9a-f]{4})` \| (\w+) \|", section("Frames", WIRE_FORMAT), re.MULTILINE)
    assert {int(number, 16): name for number, name in rows} == declared


def test_the_frame_format_is_as_specified() -> None:
    text = section("Frames", WIRE_FORMAT)

    assert frames.HEADER.format == "<IHHQ"  # what the table of bytes says
    assert frames.HEADER.size == 16
    assert frames.MAX_PAYLOAD == 1 << 30
    assert f"(now {frames.VERSION})" in text
    assert b"".join(frames.hello())[frames.HEADER.size :] == b"EMBL" + bytes([frames.VERSION, 0, 0, 0])


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    text = prose((ROOT / page).read_text())
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if not link.startswith(("https://", "http://"))]

    for link in links:
        path, _, anchor = link.partition("#")
        target = (ROOT / page).parent / path if path else ROOT / page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target.read_text()), link


def test_paths_that_pages_name_exist() -> None:
    folders = "|".join([*PACKAGES, "docs", "tests", "benchmarks", "docker", "examples"])
    named = {path for page in PAGES for path in re.findall(rf"`((?:{folders})/[\w./-]*)`", (ROOT / page).read_text())}
    invented = {path for path in named if "NAME" in path or path == "embedline/_app"}  # in a recipe; in the wheel alone

    assert len(named) > 50
    assert [path for path in named - invented if not (ROOT / path).exists()] == []


def anchors(text: str) -> set[str]:
    """Headings as links spell them."""
    titles = re.findall(r"^#+ (.+)$", prose(text), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_tests_that_pages_name_exist() -> None:
    pages = "\n".join(page.read_text() for page in (ROOT / "docs").rglob("*.md"))
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)", pages)
    assert len(named) > 20
    assert [one for one in named if f"def {one[1]}(" not in (ROOT / one[0]).read_text()] == []


def test_the_index_names_every_page() -> None:
    index = (ROOT / "docs" / "README.md").read_text()
    assert [page.name for page in (ROOT / "docs").glob("*.md") if f"]({page.name})" not in index] == ["README.md"]


def test_the_page_of_the_api_names_every_page_below_it() -> None:
    index = (ROOT / "docs" / "api.md").read_text()
    assert [page.name for page in (ROOT / "docs" / "api").iterdir() if f"](api/{page.name})" not in index] == []


def test_the_page_of_the_api_names_every_route() -> None:
    named = re.findall(r"`(?:GET |POST )?(/[\w/]*)`", (ROOT / "docs" / "api.md").read_text())
    assert {route.path for route in ROUTES} <= set(named)


@pytest.mark.parametrize("page", FLAG_PAGES)
def test_flags_that_a_page_names_exist(page: str) -> None:
    assert flags_in((ROOT / page).read_text()) <= known_flags()


@pytest.mark.holds("Metrics")
@pytest.mark.parametrize("page", PAGES)
def test_commands_and_metrics_that_a_page_names_exist(page: str) -> None:
    text = (ROOT / page).read_text()
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    commands = "\n".join([*re.findall(r"`([^`\n]+)`", text), *(example.code for example in examples(text))])
    metrics = {one.name for one in (*ALL, *GAUGES, *PROCESS_GAUGES)}

    assert set(re.findall(r"^(?:\$ )?make ([a-z-]+)", commands, re.MULTILINE)) <= set(targets)
    assert [name for name in re.findall(r"`(embedline_[a-z_]+)`", text) if name not in metrics] == []


def test_a_missing_name_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\nclass A:\n    def f(self): ...\nasync def g(): ...\n")

    assert names_in(tmp_path / "a.py") == {"x", "A", "A.f", "g"}


def rows_of_features(page: str) -> list[dict[str, str]]:
    """The rows of the page's tables of servers, each with its title under ""."""
    rows: list[dict[str, str]] = []
    names: list[str] = []
    for line in (ROOT / page).read_text().splitlines():
        cells = [cell.strip() for cell in line.strip().removeprefix("|").removesuffix("|").split("|")]
        if "Embedline" in cells and "TEI" in cells:
            names = cells
        elif line.startswith("| ") and names:
            rows.append(dict(zip(names, cells, strict=True)))
        elif not line.startswith("|"):
            names = []
    return rows


def test_the_readmes_ten_rows_are_of_the_page_that_names_their_tests() -> None:
    """They say the same of every server."""
    all_rows = {row[""]: row for row in rows_of_features("docs/compare.md")}
    decisive = rows_of_features("README.md")
    assert len(decisive) == 10
    for row in decisive:
        whole = all_rows[row[""]]
        assert {name: row[name] for name in ("TEI", "Infinity", "vLLM")} == {
            name: whole[name] for name in ("TEI", "Infinity", "vLLM")
        }
        claimed, _, words = whole["Embedline"].partition(":")
        assert row["Embedline"].replace("*", "").partition(":")[0] == claimed
        assert claimed == "no" or "::test_" in words


def test_every_feature_that_is_claimed_names_its_test() -> None:
    rows = [line for line in (ROOT / "docs/compare.md").read_text().splitlines() if line.startswith("| ")]
    ours = [row.strip(" |").rsplit(" | ", 1)[1] for row in rows if not row.startswith("| |")]
    assert len(ours) > 30
    assert [cell for cell in ours if not re.match(r"yes: `tests/[\w/]+\.py::\w+`|no\b", cell)] == []
