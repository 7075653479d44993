"""torch's own Gloo and ours in one process, torch imported first."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import torch
import torch.distributed

import mydist as md

# A plugin that is loaded already; asking again must not load a second copy.
RTLD_NOLOAD = 4


def symbol_origin() -> str:
    """The library whose Gloo the plugin of this process calls."""
    path = Path(md.__file__).parent / "lib" / "libmydist_gloo.so"
    plugin = ctypes.CDLL(str(path), mode=RTLD_NOLOAD | ctypes.RTLD_LOCAL)
    plugin.mydist_gloo_symbol_origin.restype = ctypes.c_char_p
    return str(plugin.mydist_gloo_symbol_origin().decode())


def main() -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.distributed.init_process_group("gloo")
    md.init()
    for step in range(20):
        ours = md.allreduce(torch.full((1000,), float(md.rank() + step)), op=md.Sum, name="ours")
        theirs = torch.full((1000,), float(md.rank() + step))
        torch.distributed.all_reduce(theirs)
        assert torch.equal(ours, theirs), f"step {step}: {ours[0]} and {theirs[0]}"
    if md.rank() == 0:
        print("ORIGIN " + symbol_origin(), flush=True)
    md.shutdown()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
