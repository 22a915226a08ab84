"""Models on disk: the hub, the cache of compiled models, digests, safetensors files. Knows no model's meaning."""
