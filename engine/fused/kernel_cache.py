"""Where Triton keeps the kernels that it compiles: beside kept models, or where the user has said. Knows no kernel."""

import logging
from collections.abc import MutableMapping
from pathlib import Path

from engine.failures import one_line
from engine.store.cache import check_owner

logger = logging.getLogger("embedline.engine")

_FOLDER = "triton"
_VARIABLE = "TRITON_CACHE_DIR"
_SAID_BY = (_VARIABLE, "TRITON_HOME")  # either one is the user's word


def use(cache_dir: Path, environment: MutableMapping[str, str]) -> None:
    """Have kernels kept in a folder of this one. To be called before the first of them is compiled.

    Triton loads what it finds there as programs, so a folder that others could have written to is not used: kernels
    are then kept where Triton keeps them by itself.
    """
    if any(name in environment for name in _SAID_BY):
        return
    folder = cache_dir / _FOLDER
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        check_owner(folder)
    except OSError as error:
        logger.warning("compiled kernels are not kept in %s: %s", folder, one_line(error))
        return
    environment[_VARIABLE] = str(folder)
