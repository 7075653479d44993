"""Codecs at work: who sends what to whom, and what each rank keeps from step to step."""
