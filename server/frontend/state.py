"""What a frontend knows of the house: which models there are, whether they can compute, what it has counted."""

from collections.abc import Sequence

from server.requests.errors import NotReady
from server.requests.models import ModelTable, served_models
from wire.control import Json
from wire.page import Page

_RETRY_SECONDS = 2.0


class FrontendState:
    """Written by the supervisor's STATE; read by every route."""

    def __init__(self, page: Page, *, strict_model_name: bool = False) -> None:
        self._page = page
        self._strict_model_name = strict_model_name
        self._house: Json = {}
        self._models: ModelTable | None = None
        self.draining = False

    def update(self, house: Json) -> None:
        """Take in a STATE."""
        self._house = house
        if house["models"]:
            self._models = ModelTable(
                served_models(house["models"]), names=house.get("names", ()), is_strict=self._strict_model_name
            )

    @property
    def house(self) -> Json:
        """The newest STATE."""
        return self._house

    @property
    def models(self) -> ModelTable | None:
        """None while the first model is loading."""
        return self._models

    @property
    def names(self) -> Sequence[str]:
        """Of all models that are served, those that are loading included, in their order."""
        names: Sequence[str] = self._house.get("names", ())
        return names

    def why_model_not_ready(self, name: str) -> str | None:
        """None when a request for this one of `names` sent now would be computed, whatever the others do."""
        if self.draining:
            return "the server is stopping"
        if not self._page.engines_ready[:, self.names.index(name)].any():
            return "no engine for the model is ready"
        return None

    def models_or_not_ready(self) -> ModelTable:
        """Raises NotReady while the first model is loading."""
        if self._models is None:
            raise NotReady("the model is still loading", retry_after=_RETRY_SECONDS)
        return self._models

    def why_not_ready(self) -> str | None:
        """None when a request sent now would be computed."""
        if self.draining:
            return "the server is stopping"
        if not self._house.get("ready"):
            return str(self._house.get("reason", "starting"))
        # the page knows of a dead engine before the supervisor has said so
        if (self._page.engines_ready.sum(axis=0) < 1).any():
            return "no engine is ready"
        return None
