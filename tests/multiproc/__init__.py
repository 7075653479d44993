"""Tests that need several processes: every check runs inside real jobs started by mydistrun."""
