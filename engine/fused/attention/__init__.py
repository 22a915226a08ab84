"""Which attention kernel a model runs with: our own (kernels/), FlashAttention-2 or cuDNN's, timed at load."""
