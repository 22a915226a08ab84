"""Where attention is in new versions."""

from tensorrt_llm.stand_in import only_with

only_with(old_paths=False, module=__name__)
