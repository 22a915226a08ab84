"""The adapters: an architecture's configuration becomes a Spec, its tensors' names become ours.

One file for each kind of architecture. No files are read and no weights are touched here.
"""

from engine.fused.adapters import bert, gemma, llama, modernbert, mpnet, rotary_bert

ADAPTERS = {  # by model_type
    **bert.ADAPTERS,
    **mpnet.ADAPTERS,
    **rotary_bert.ADAPTERS,
    **llama.ADAPTERS,
    **gemma.ADAPTERS,
    **modernbert.ADAPTERS,
}
