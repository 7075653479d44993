"""Elastic jobs: ranks come and go while the job runs. See docs/decisions/0032-elastic.md."""
