"""What Horovod's frameworks share, under the names of `horovod.common`."""
