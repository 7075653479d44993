"""`import horovod` where this folder is on the import path: the package is `mydist.horovod`."""

import mydist.horovod.aliases

mydist.horovod.aliases.install()
