"""Not here; the import says what to use instead."""

from .absent import missing

raise missing("tensorflow", "use horovod.torch with a PyTorch model")
