"""Jobs on several hosts: network namespaces on one machine, reached over real ssh."""
