"""Lets the ranks of tests start in a third of the time: torch's compiler waits until it is used.

Python imports this file at its start when the folder is in PYTHONPATH, as in all but deep runs.
Importing torch registers functions that trace programs (a second of a core), and an optimizer
imports torch._dynamo (two) to tell it what not to trace. Here both wait until something else
imports torch._dynamo. Until then nothing is traced, so nothing else differs. torch.export waits for
its first use.
"""

from __future__ import annotations

import functools
import gc
import importlib
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

COMPILER = "torch._dynamo"
FOR_TRACING = "torch._meta_registrations"


def hidden_from_the_compiler(decorate: Callable) -> Callable:
    """torch._compile._disable_dynamo, which imports the compiler at the first call."""

    def decorator(function: Callable | None = None, recursive: bool = True) -> Callable:
        if function is None:
            return functools.partial(decorator, recursive=recursive)
        return plain_without_compiler(function, decorate(function, recursive))

    return decorator


def optimizer_step(decorate: Callable) -> Callable:
    """torch.optim's decorator of step(), which asks the compiler for a break before and after."""

    def decorator(step: Callable) -> Callable:
        def without_break(self: Any, *args: Any, **kwargs: Any) -> Any:
            set_grad_enabled = sys.modules["torch"].set_grad_enabled
            with set_grad_enabled(self.defaults["differentiable"]):
                return step(self, *args, **kwargs)

        return plain_without_compiler(without_break, decorate(step))

    return decorator


def plain_without_compiler(plain: Callable, full: Callable) -> Callable:
    """`full` once there is a compiler, `plain` before."""

    @functools.wraps(full)
    def call(*args: Any, **kwargs: Any) -> Any:
        return (full if COMPILER in sys.modules else plain)(*args, **kwargs)

    return call


# By module: a decorator of its own, and what takes its place.
DECORATORS = {
    "torch._compile": ("_disable_dynamo", hidden_from_the_compiler),
    "torch.optim.optimizer": ("_use_grad_for_differentiable", optimizer_step),
}


class Around:
    """Loads a module with the true loader, and does something besides."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        """As the true loader."""
        return self._loader.create_module(spec)


class Changed(Around):
    """Loads one of these modules."""

    def exec_module(self, module: ModuleType) -> None:
        """The true module, and then its decorator."""
        self._loader.exec_module(module)
        name, change = DECORATORS[module.__name__]
        setattr(module, name, change(getattr(module, name)))


class AlmostEmpty:
    """Loads a module with next to nothing in it."""

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        """As Python does by default."""

    def exec_module(self, module: ModuleType) -> None:
        """But what generators of random numbers need of it: their metaclass."""
        set_metaclass = getattr(sys.modules["torch"]._C, "_set_generator_metaclass", None)
        if set_metaclass:  # An older torch has none.
            set_metaclass(importlib.import_module("torch._opaque_base").OpaqueBaseMeta)


class Uncollected(Around):
    """Loads a module while the garbage collector rests: a tenth of the time of importing torch."""

    def exec_module(self, module: ModuleType) -> None:
        """The true module."""
        gc.disable()
        try:
            self._loader.exec_module(module)
        finally:
            gc.enable()


class Later(Around):
    """Loads a module when its first name is asked for."""

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        """One that the true loader fills at the first use."""
        loader = self._loader

        class Waiting(ModuleType):
            def __getattr__(self, name: str) -> Any:
                if name.startswith("__"):
                    raise AttributeError(name)
                self.__class__ = ModuleType
                loader.exec_module(self)
                return getattr(self, name)

        return Waiting(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing yet."""


LOADERS = {"torch": Uncollected, "torch.export": Later, **dict.fromkeys(DECORATORS, Changed)}


class Finder:
    """Python asks it before its own finders."""

    def __init__(self) -> None:
        self._has_compiler = False

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """What differs; None for a true module."""
        if name == COMPILER and not self._has_compiler:
            self._has_compiler = True
            if sys.modules.pop(FOR_TRACING, None):
                importlib.import_module(FOR_TRACING)
        elif name == FOR_TRACING and not self._has_compiler:
            return importlib.machinery.ModuleSpec(name, AlmostEmpty())
        elif name in LOADERS:
            spec = importlib.machinery.PathFinder.find_spec(name, path, target)
            if spec and spec.loader:
                spec.loader = LOADERS[name](spec.loader)
            return spec
        return None


sys.meta_path.insert(0, Finder())
