"""What of `__main__` travels whole, and what by name."""

from __future__ import annotations

import functools
import pickle
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from mydist.job.pickling import dumps

SENDER = """
def answer(): return helper() + factor
def helper(): return 40
factor = 2
class Config:
    def __init__(self): self.value = answer
    def __eq__(self, other): return type(self) is type(other)
def make(): return Config()
def guarded(): return lock
"""
RECEIVER = """
def answer(): return -1
class Config:
    def __eq__(self, other): return type(self) is type(other)
def guarded(): return -1
"""


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], dict[str, Any]]:
    """Puts what a script defines into `__main__`, in place of what the last one defined."""

    def run(script: str) -> dict[str, Any]:
        defined: dict[str, Any] = {"__name__": "__main__", "lock": threading.Lock()}
        exec(script, defined)
        module = type(sys)("__main__")
        module.__dict__.update(defined)
        monkeypatch.setitem(sys.modules, "__main__", module)
        return defined

    return run


@pytest.mark.parametrize(
    "wrap",
    [lambda f: f, functools.partial, lambda f: lambda: f()],
    ids=["itself", "partial", "in_a_lambda"],
)
@pytest.mark.parametrize("by_value", [False, True])
def test_a_function_is_the_senders(main: Any, wrap: Any, by_value: bool) -> None:
    data = dumps(wrap(main(SENDER)["answer"]), by_value)
    main(RECEIVER)
    assert pickle.loads(data)() == 42


def test_a_class_is_the_receivers_where_it_has_one(main: Any) -> None:
    sender = main(SENDER)
    data = dumps([sender["Config"](), sender["make"]])
    own = main(RECEIVER)["Config"]
    config, make = pickle.loads(data)
    assert config == own() and isinstance(config, own) and config.value() == 42
    assert isinstance(make(), own)


def test_a_class_travels_whole_to_a_receiver_without_one(main: Any) -> None:
    data = dumps(main(SENDER)["Config"](), by_value=True)
    main("")
    assert pickle.loads(data).value() == 42


def test_a_function_that_uses_what_cannot_be_pickled_travels_by_name(main: Any) -> None:
    data = dumps(main(SENDER)["guarded"])
    assert pickle.loads(data) is sys.modules["__main__"].guarded
    main(RECEIVER)
    assert pickle.loads(data)() == -1
