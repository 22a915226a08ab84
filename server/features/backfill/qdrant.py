"""A collection of Qdrant. A row's point has the UUID of its id, so that a row that is put again is overwritten."""

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit
from uuid import NAMESPACE_URL, uuid5

from pydantic import ValidationError
from qdrant_client import QdrantClient, models
from qdrant_client.http.exceptions import ApiException, ResponseHandlingException, UnexpectedResponse

from server.features.backfill.errors import BackfillError, RefusedJob, SinkAway, in_words
from server.features.backfill.parts import Content
from server.features.backfill.plan import Plan

_SECONDS = 60  # of one request
_REQUEST_NUMBERS = 1 << 18  # of the vectors of one request: about 5 MB of JSON, where Qdrant takes 32
_REQUEST_POINTS = 1000
_DATATYPES = {"float16": models.Datatype.FLOAT16, "float32": models.Datatype.FLOAT32}
_ERRORS = (ApiException, ValueError, ValidationError)


class QdrantSink:
    """Writes rows to Qdrant over HTTP."""

    def __init__(self, url: str, api_key: str | None) -> None:
        """qdrant+http://host[:port][/prefix]/collection, or qdrant+https. Raises RefusedJob."""
        parts = urlsplit(url.removeprefix("qdrant+"))
        prefix, _, self._collection = parts.path.rpartition("/")
        if not parts.hostname or not self._collection or parts.query or parts.fragment or "@" in parts.netloc:
            raise RefusedJob(
                "OUT must be like qdrant+https://host:6333/collection; the key comes by QDRANT_API_KEY alone"
            )
        self.where = f"{url} collection"
        self._client = QdrantClient(
            url=f"{parts.scheme}://{parts.netloc}",
            prefix=prefix or None,
            api_key=api_key,
            timeout=_SECONDS,
            check_compatibility=False,  # it warns on standard error; a server that is too old refuses
        )
        self._exists()

    def _exists(self) -> bool:
        try:
            return self._client.collection_exists(self._collection)
        except _ERRORS as error:
            raise RefusedJob(f"OUT can't be reached: {_in_a_line(error)}") from None

    def begin(self, plan: Plan, *, may_create: bool) -> None:
        """Makes the collection where there is none, with cosines. Raises RefusedJob for one with other vectors."""
        try:
            if not self._exists():
                if not may_create:
                    raise RefusedJob(f"there is no collection {self._collection}, but parts of this job are in it")
                self._create(plan)
            found = self._client.get_collection(self._collection).config.params.vectors
        except _ERRORS as error:
            raise RefusedJob(f"the collection {self._collection} can't be used: {_in_a_line(error)}") from None
        has = _described(found)
        wanted = f"{plan.dimensions} of {plan.dtype}"
        if has != wanted:
            raise RefusedJob(f"the collection {self._collection} has vectors: {has}, and this job has {wanted}")

    def _create(self, plan: Plan) -> None:
        vectors = models.VectorParams(
            size=plan.dimensions, distance=models.Distance.COSINE, datatype=_DATATYPES[plan.dtype]
        )
        try:
            self._client.create_collection(self._collection, vectors_config=vectors)
        except UnexpectedResponse as error:
            if error.status_code != 409:  # another worker has just made it
                raise

    def put(self, content: Content) -> None:
        """Points of the good rows; those of bad rows are removed, should there be any of an earlier job."""
        try:
            for points in _batches(content):
                _check(self._client.upsert(self._collection, points, wait=True))
            gone = [point_id(content.ids[place]) for place in content.failed if content.ids[place] is not None]
            for start in range(0, len(gone), _REQUEST_POINTS):
                selector = models.PointIdsList(points=list(gone[start : start + _REQUEST_POINTS]))
                _check(self._client.delete(self._collection, points_selector=selector, wait=True))
        except _ERRORS as error:
            kind = SinkAway if _is_away(error) else BackfillError
            raise kind(f"the collection {self._collection} can't be written to: {_in_a_line(error)}") from None

    def num_rows(self) -> int:
        """The number of points in the collection. Raises BackfillError."""
        try:
            return self._client.count(self._collection, exact=True).count
        except _ERRORS as error:
            raise BackfillError(f"the points of {self._collection} can't be counted: {_in_a_line(error)}") from None

    def close(self) -> None:
        """Let go of the connections."""
        self._client.close()


def point_id(key: int | str) -> str:
    """UUIDv5 of the id as text, in the namespace of URLs."""
    return str(uuid5(NAMESPACE_URL, str(key)))


def _batches(content: Content) -> Iterator[models.Batch]:
    good = [place for place in range(len(content.ids)) if place not in content.failed]
    size = max(1, min(_REQUEST_POINTS, _REQUEST_NUMBERS // content.rows.shape[1]))
    for start in range(0, len(good), size):
        places = good[start : start + size]
        ids = [content.ids[place] for place in places]
        yield models.Batch(
            ids=[point_id(key) for key in ids],
            vectors=content.rows[places].tolist(),
            payloads=[{"id": key} for key in ids],
        )


def _check(result: models.UpdateResult) -> None:
    """Raises SinkAway for what was taken and is not done."""
    if result.status != models.UpdateStatus.COMPLETED:
        raise SinkAway(f"Qdrant answers {result.status.value} where it should have waited")


def _is_away(error: Exception) -> bool:
    if isinstance(error, UnexpectedResponse):
        return error.status_code == 429 or (error.status_code or 500) >= 500
    return isinstance(error, ResponseHandlingException)


def _described(vectors: Any) -> str:
    if not isinstance(vectors, models.VectorParams) or vectors.multivector_config is not None:
        return "named or several of a point"
    return f"{vectors.size} of {(vectors.datatype or models.Datatype.FLOAT32).value}"


def _in_a_line(error: Exception) -> str:
    if isinstance(error, UnexpectedResponse):
        return f"HTTP {error.status_code} {error.content[:200].decode(errors='replace')}"
    return in_words(error)
