"""The servers that compute a job: they must all have one model, and keep it."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from embedline import Client
from embedline.client.errors import Cancelled, RequestFailed
from embedline.client.preference import CancellationToken, RequestProcessingPreference
from server.features.backfill.errors import BackfillError, RefusedJob, Stopped

_MAX_CHARS = 1 << 20  # of a request; a longer text goes alone
_MAX_RETRIES = 20  # about nine minutes in which a server may be replaced
_PROBE = "a"  # every tokenizer has it
_NO_REASON = "the server gave no row and no reason"
_OPENAI = "/v1/embeddings"


@dataclass(frozen=True, slots=True)
class Served:
    """The model, as its server describes it."""

    model: Mapping[str, str]  # the fingerprint with its parts, and the engine
    dimensions: int  # of a row, as it is asked for


class Servers:
    """A client of all of them, and one of each for what each must say itself. Close it, or use `with`."""

    def __init__(
        self,
        urls: Sequence[str],
        api_key: str | None,
        *,
        model: str | None,
        ask: Mapping[str, Any],
        token: CancellationToken,
    ) -> None:
        """`ask`: fields of each request. The token ends every call. Raises RefusedJob for a wrong URL."""
        self._extra = {name: value for name, value in ask.items() if name != "dimensions"} | {"on_error": "null"}
        self._dimensions = ask.get("dimensions")
        self._model = model
        preference = RequestProcessingPreference(
            batch_size=128,
            max_chars_per_request=_MAX_CHARS,
            max_retries=_MAX_RETRIES,
            extra_headers={"x-embedline-class": "bulk"},
            cancel_token=token,
        )
        try:
            self.all = Client(list(urls), api_key, model=model, preference=preference)
            self._each = [Client(url, api_key, preference=preference) for url in urls]
        except ValueError as error:
            raise RefusedJob(f"--url: {error}") from None

    def __enter__(self) -> "Servers":
        return self

    def __exit__(self, *ended: object) -> None:
        for client in (self.all, *self._each):
            client.close()

    def described(self) -> Served:
        """The model that is served. Raises RefusedJob where servers differ, or are not ours, and BackfillError."""
        model = self._described_alike()
        with told(), contextlib.closing(self.embed([_PROBE])) as slices:
            return Served(model, next(slices).embeddings.shape[1])

    def check_still(self, model: Mapping[str, str]) -> None:
        """Raises BackfillError where one of them has another model by now."""
        try:
            same = self._described_alike() == dict(model)
        except RefusedJob as error:
            raise BackfillError(str(error)) from None
        if not same:
            raise BackfillError("the server has another model than at the job's start")

    def embed(self, texts: Any) -> Any:
        """Like Client.iter_embed: slices of rows in any order; rows of texts that fail alone are NaN."""
        return self.all.iter_embed(texts, dimensions=self._dimensions, extra_body=self._extra)

    def reasons(self, texts: Sequence[str]) -> list[str]:
        """The reasons why each of these texts has no row. Raises BackfillError."""
        fields = {"model": self._model or "", **self._extra}
        if self._dimensions is not None:
            fields["dimensions"] = self._dimensions
        with told():  # one by one, so that no message depends on the texts beside it
            answers = self.all.batch_post(_OPENAI, [{"input": [text], **fields} for text in texts]).data
        return [str(answer["data"][0].get("error", {}).get("message", _NO_REASON)) for answer in answers]

    def _described_alike(self) -> dict[str, str]:
        with told():
            found = [
                self._fingerprint(client.batch_post("/info", [None], method="GET").data[0]) for client in self._each
            ]
        if any(one != found[0] for one in found):
            raise RefusedJob("the servers of --url have different models")
        return found[0]

    def _fingerprint(self, info: Any) -> dict[str, str]:
        models = info.get("models", []) if isinstance(info, dict) else []
        named = [one for one in models if self._model in (None, one.get("info", {}).get("name"))]
        if len(named) != 1:
            names = ", ".join(str(one.get("info", {}).get("name")) for one in models)
            raise RefusedJob(f"--model must name one of: {names}" if names else "the server has no GET /info of ours")
        return {**named[0]["fingerprint"], "engine": named[0]["info"]["engine"]}


@contextlib.contextmanager
def told() -> Iterator[None]:
    """Turns the client's errors into this command's."""
    try:
        yield
    except Cancelled:
        raise Stopped("stopped by a signal") from None
    except RequestFailed as error:
        raise BackfillError(str(error)) from None
