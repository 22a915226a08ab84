"""What layers derive from."""

from torch import nn


class DecoderLayer(nn.Module):
    pass
