"""Models on disk: the hub, the cache of compiled models, rights, safetensors files. Knows no model's meaning."""
