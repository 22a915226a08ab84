"""The inputs and the result of all rules."""

from dataclasses import dataclass
from pathlib import Path

from engine.model.detection.architecture import Architecture
from engine.model.json_files import Json
from engine.model.modules import Chain
from engine.model.sentence_files import SentenceFiles
from engine.model.tasks import Activation, Head, LateInteraction, PairTemplate, Task, TokenTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Detected:
    """A task that a model's files fit, with its heads."""

    task: Task
    source: str  # the file or flag that says so
    heads: tuple[Head, ...] = ()
    activation: Activation = Activation.IDENTITY
    template: PairTemplate | None = None
    late: LateInteraction | None = None
    query_table: TokenTable | None = None
    prompts: dict[str, str] | None = None  # None = those of the model's files
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """The files that rules read."""

    folder: Path
    served: Architecture
    sentence: SentenceFiles
    needs_weights: bool  # whether headers of weights are read
    known_classes: frozenset[str] = frozenset()  # see engine.model.model_folder.read
    template: str | None = None  # the value of --template

    @property
    def config(self) -> Json:
        """config.json in the architecture's words, with the text model's part of it on top."""
        return self.served.config

    @property
    def backbone_folder(self) -> Path:
        """The folder of the transformer and the tokenizer: `folder`, mostly."""
        return self.folder / self.sentence.tokenizer_folder

    @property
    def architecture(self) -> str:
        """The class name in config.json, or ""."""
        names = self.config.get("architectures") or [""]
        return str(names[0]) if isinstance(names, list) else ""

    @property
    def chain(self) -> Chain | None:
        """The chain in modules.json."""
        return self.sentence.chain
