"""What a GPU does with the fused engine: ceilings, kernels, models and the whole server, each part resumable."""
