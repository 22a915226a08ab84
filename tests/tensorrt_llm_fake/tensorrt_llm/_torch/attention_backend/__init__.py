"""Where the masks are in old versions."""

from tensorrt_llm.stand_in import only_with

only_with(old_paths=True, module=__name__)
