"""How a process joins, knows and leaves its job."""
