"""Jobs that measure figures which mydist.bench has no command for; started by suites.py."""
