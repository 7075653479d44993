"""Not here; the import says what to use instead."""

from .absent import missing

raise missing("keras", "use horovod.torch with a PyTorch model")
