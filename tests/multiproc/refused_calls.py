"""System calls that fail in this thread and those it starts from now on, as in many containers."""

from __future__ import annotations

import ctypes
import errno
import os
import platform

_NUMBERS = {
    "x86_64": {"process_vm_readv": 310, "process_vm_writev": 311},
    "aarch64": {"process_vm_readv": 270, "process_vm_writev": 271},
}
_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2
_PR_SET_NO_NEW_PRIVS = 38
# Of the classic BPF: load a word, jump if equal, return.
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _FAIL = 0x7FFF0000, 0x00050000


class _Instruction(ctypes.Structure):
    _fields_ = [
        ("code", ctypes.c_uint16),
        ("if_true", ctypes.c_uint8),
        ("if_false", ctypes.c_uint8),
        ("value", ctypes.c_uint32),
    ]


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_uint16), ("first", ctypes.POINTER(_Instruction))]


def refuse_calls() -> None:
    """Of those that TEST_REFUSED_CALLS names, separated by commas: "Operation not permitted"."""
    for name in filter(None, os.environ.get("TEST_REFUSED_CALLS", "").split(",")):
        _refuse(_NUMBERS[platform.machine()][name])


def _refuse(number: int) -> None:
    instructions = (_Instruction * 4)(
        _Instruction(_LOAD, 0, 0, 0),  # The number of the call.
        _Instruction(_JUMP_IF_EQUAL, 0, 1, number),
        _Instruction(_RETURN, 0, 0, _FAIL | errno.EPERM),
        _Instruction(_RETURN, 0, 0, _ALLOW),
    )
    program = _Program(len(instructions), instructions)
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in (
        (_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
        (_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0),
    ):
        if libc.prctl(*arguments) != 0:
            raise OSError(ctypes.get_errno(), "prctl")
