"""Dataclasses of which every request makes some."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

__all__ = ("light_dataclass",)

if TYPE_CHECKING:
    from dataclasses import dataclass as light_dataclass
else:

    def light_dataclass(**how: Any) -> Any:
        """A dataclass that is frozen for the type checker alone: to set the fields of one that is frozen while the
        program runs takes several times as long as all else that making it takes."""
        return dataclass(**how | {"frozen": False})
