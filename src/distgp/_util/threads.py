"""Threads that do not fight: PyTorch's, and those of the BLAS that SciPy brings."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from functools import cache, cached_property, wraps
from typing import ClassVar, ParamSpec, TypeVar
from weakref import WeakSet

import torch
from threadpoolctl import ThreadpoolController

from distgp._util import waiting

waiting.forget()  # PyTorch, which is loaded now, has read it

Item = TypeVar("Item")
Result = TypeVar("Result")
Given = ParamSpec("Given")


@cache
def _blas() -> ThreadpoolController:
    """The libraries of linear algebra that NumPy and SciPy have loaded."""
    import scipy.linalg  # noqa: F401  # so that its library is among them

    return ThreadpoolController().select(user_api="blas")


class Lock:
    """A lock of which a forked process has a new one: the thread that may hold the old is not there.

    It is taken by ``with lock.now:``, so that a child that is forked inside gives back the one it took.
    """

    every: ClassVar[WeakSet[Lock]] = WeakSet()

    def __init__(self) -> None:
        self.now = threading.RLock()
        Lock.every.add(self)


class _Limit:
    """The users of a limit at this moment, and the numbers of threads to put back after the last."""

    lock = Lock()
    users = 0
    before: tuple[int, ...] = ()


@contextmanager
def blas_threads(threads: int) -> Iterator[None]:
    """Let SciPy's linear algebra use this many threads for as long as the context lasts."""
    libraries = _blas().lib_controllers
    with _Limit.lock.now:
        if _Limit.users == 0:
            _Limit.before = tuple(library.get_num_threads() for library in libraries)
        _Limit.users += 1
        for library in libraries:
            if library.get_num_threads() != threads:
                library.set_num_threads(threads)
    try:
        yield
    finally:
        with _Limit.lock.now:
            _Limit.users -= 1
            if _Limit.users == 0:
                for library, before in zip(libraries, _Limit.before, strict=True):
                    library.set_num_threads(before)


class Abandoned(BaseException):
    """Raised in a call of `on_threads` whose result nobody waits for any more."""


_abandoned: ContextVar[threading.Event | None] = ContextVar("abandoned", default=None)


def go_on() -> None:
    """Raise `Abandoned` where a call beside this one has failed, or the user has interrupted all."""
    event = _abandoned.get()
    if event is not None and event.is_set():
        raise Abandoned


def on_threads(function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """Call a function on items, on as many threads as PyTorch has, each call with one of its own.

    For many small matrices, for which PyTorch's threads would wait for each other in every operation.
    Gradients are enabled in the calls or not as they are here, and what is silenced here is silenced there.
    Where one fails, or the user interrupts, those calls that look by `go_on` end too, and are waited for.
    """
    threads, gradients = torch.get_num_threads(), torch.is_grad_enabled()
    if threads == 1 or len(items) < 2:
        return [function(item) for item in items]

    over = threading.Event()

    def call(context: Context, item: Item) -> Result:
        torch.set_num_threads(1)
        context.run(_abandoned.set, over)
        with torch.set_grad_enabled(gradients):
            return context.run(function, item)

    try:
        with blas_threads(1):
            calls = [_pool(threads).submit(call, copy_context(), item) for item in items]
            try:
                for ended in wait(calls, return_when=FIRST_EXCEPTION).done:
                    ended.result()  # raises what it raised, though calls before it go on
                return [one.result() for one in calls]
            except BaseException:
                over.set()
                wait([one for one in calls if not one.cancel()])
                raise
    finally:
        torch.set_num_threads(threads)


def at_once(function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """Call a function that does not use PyTorch on items, on as many threads as PyTorch has."""
    contexts = (copy_context() for _ in items)
    return list(
        _pool(torch.get_num_threads()).map(lambda c, item: c.run(function, item), contexts, items)
    )


@contextmanager
def gradients() -> Iterator[None]:
    """Have gradients, which training needs, even where the caller has switched them off."""
    with torch.inference_mode(False), torch.enable_grad():
        yield


def on_named_devices(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """Have a function make tensors where it says, and on the CPU where it says nothing.

    The user may have set another default by `torch.set_default_device`.
    """

    @wraps(function)
    def called(*given: Given.args, **options: Given.kwargs) -> Result:
        if torch.get_default_device().type == "cpu":
            return function(*given, **options)
        with torch.device("cpu"):
            return function(*given, **options)

    return called


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    """Threads that wait for work; they are started once, since that takes as long as some of it."""
    return ThreadPoolExecutor(threads, thread_name_prefix="distgp")


def _cached_properties() -> Iterator[cached_property[object]]:
    """The cached properties of distgp's classes, as far as these are imported."""
    own = [module for name, module in sys.modules.items() if name.startswith("distgp.")]
    classes = [c for module in own for c in vars(module).values() if isinstance(c, type)]
    for kind in classes:
        yield from (v for v in vars(kind).values() if isinstance(v, cached_property))


def _alone_after_fork() -> None:
    """Compute with one thread in a forked process: it has none of its parent's, and would wait for them."""
    _pool.cache_clear()
    for lock in Lock.every:
        lock.now = threading.RLock()
    for value in _cached_properties():  # before Python 3.12 each has a lock for a whole class
        vars(value)["lock"] = threading.RLock()
    _Limit.users = 0
    torch.set_num_threads(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_alone_after_fork)
