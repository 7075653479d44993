"""Print what a C++ extension needs to know about this Python's torch, one fact a line.

The order is read by torch_binding.cmake: version, _GLIBCXX_USE_CXX11_ABI (0 or 1), library
folder, then every include folder.
"""

import os
import sys

try:
    import torch
except ImportError as error:
    sys.exit(f"cannot import torch: {error}\n")

root = os.path.dirname(os.path.abspath(torch.__file__))
include = os.path.join(root, "include")
facts = [
    torch.__version__,
    str(int(torch.compiled_with_cxx11_abi())),
    os.path.join(root, "lib"),
    include,
    os.path.join(include, "torch", "csrc", "api", "include"),
]
print("\n".join(facts))
