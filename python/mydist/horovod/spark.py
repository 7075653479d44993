"""Not here; the import says what to use instead."""

from .absent import missing

raise missing("spark", "start the job with mydistrun, or call mydist.run() in the driver")
