"""What all tests share: how kernels are run."""

import os

from engine.machine import cuda_driver

# Triton looks at this when a kernel is defined: without a GPU its interpreter runs them.
if not cuda_driver.find().gpus:
    os.environ["TRITON_INTERPRET"] = "1"
