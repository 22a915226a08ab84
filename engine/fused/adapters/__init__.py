"""The adapters: an architecture's configuration becomes a Spec, its tensors' names become ours.

One file for each family of architectures. No files are read and no weights are touched here.
"""

from engine.fused.adapters import bert, llama, modernbert

ADAPTERS = {  # by model_type
    **bert.ADAPTERS,
    **llama.ADAPTERS,
    **modernbert.ADAPTERS,
}
