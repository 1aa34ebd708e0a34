"""A Ray cluster: every item lives in an actor of its own.

All that a worker holds can be made again: its item from the item's source, and whatever was derived
from it by the functions that derived it. So a worker that dies, alone or with its node, is replaced
by a new one that makes the same again, and its part of the round is repeated. Workers keep nothing
else, so the round gives what it would have given.
"""

from __future__ import annotations

import itertools
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic

import numpy as np
import torch
from torch import Tensor

from distgp.engines.base import (
    Engine,
    EngineError,
    Item,
    Placement,
    Result,
    Traffic,
    measured,
)

try:
    import ray
    from ray.exceptions import RayError, RayTaskError
except ImportError as error:  # pragma: no cover - depends on the installation
    raise ImportError(
        "engine='ray' needs Ray, which is not installed: pip install 'distgp[ray]'"
    ) from error

START_LIMIT = 120.0
"""Seconds that new workers may take to start."""
REPLACE_LIMIT = 20.0
"""Seconds that a replacement may wait for a CPU of its own before it shares one."""
SMALL = 2**16
"""Bytes of arguments up to which they travel with each call; more go once through the object store."""


_DEVICE = ["cpu"]
"""Where tensors that arrive in this process are put."""


def _to_array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().cpu().numpy()


def _from_array(array: np.ndarray) -> Tensor:
    return torch.from_numpy(np.array(array)).to(_DEVICE[0])


def _register() -> None:
    """Tensors travel as arrays, from any device, and arrive on the device of the receiver.

    Both functions are sent by name, so that the receiver's own `_DEVICE` counts.
    """
    ray.util.register_serializer(Tensor, serializer=_to_array, deserializer=_from_array)


class _Worker:
    """What runs in an actor: a shelf of items, by number."""

    def __init__(self, device: str, threads: int) -> None:
        torch.set_num_threads(threads)
        _DEVICE[0] = device
        _register()
        self._shelf: dict[int, Any] = {}

    def make(self, key: int, source: Callable[[], Any]) -> None:
        self._shelf[key] = source()

    def derive(self, key: int, parent: int, function: Callable[..., Any], arguments: Any) -> bool:
        self._shelf[key] = function(self._shelf[parent], *arguments)
        return self._shelf[key] is not None

    def apply(self, key: int, function: Callable[..., Any], arguments: Any) -> Any:
        return function(self._shelf[key], *arguments)

    def forget(self, key: int) -> None:
        self._shelf.pop(key, None)

    def pid(self) -> int:
        import os

        return os.getpid()


@dataclass(frozen=True)
class _Step:
    """How an item came onto the shelves: from its parent, or from each worker's source."""

    key: int
    parent: int | None
    function: Callable[..., Any] | None
    arguments: Any  # the arguments or a reference to them; of the first step, the workers' sources


_OPEN: weakref.WeakSet[RayEngine] = weakref.WeakSet()
_STARTED_HERE: list[bool] = []
"""Not empty while this module has connected the process to a cluster."""


def _join(address: str | None) -> None:
    """Connect to a cluster, or start one, unless the process is connected already."""
    if ray.is_initialized():
        if address not in (None, "auto", ray.get_runtime_context().gcs_address):
            raise EngineError(
                f"this process is connected to a Ray cluster already, so it cannot join {address!r}: "
                "call ray.shutdown() first, or leave out the address"
            )
        return
    try:
        ray.init(address=address, include_dashboard=False, log_to_driver=False)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise EngineError(
            f"no Ray cluster to be had at {address or 'this machine'}: {error}"
        ) from error
    _STARTED_HERE.append(True)


def _leave() -> None:
    """Disconnect, and stop a cluster that was started here, once no engine is open."""
    if _STARTED_HERE and not len(_OPEN):
        _STARTED_HERE.clear()
        if ray.is_initialized():
            ray.shutdown()


_SHARED: list[RayEngine] = []


def shared_engine() -> RayEngine:
    """The engine behind engine="ray": one for all regressors of this process."""
    if not _SHARED or not _SHARED[0]._open or not ray.is_initialized():
        _SHARED[:] = [RayEngine()]
    return _SHARED[0]


class RayEngine(Engine):
    """Workers are actors on a Ray cluster.

    address: of a cluster to join ("auto", "ray://…", "host:port"; default: RAY_ADDRESS, else a cluster
    is started on this machine and stopped with the engine). workers: how many actors at most
    (default: one for every `cpus` CPUs of the cluster). cpus, gpus: what each actor takes; with gpus
    its tensors live on the GPU. retries: how often the work of one worker is repeated in one round
    when it is lost. time_limit: seconds that a round may take; None for any.
    """

    name: ClassVar[str] = "ray"

    def __init__(
        self,
        address: str | None = None,
        workers: int | None = None,
        cpus: float = 1,
        gpus: float = 0,
        retries: int = 3,
        time_limit: float | None = 3600.0,
    ) -> None:
        self.retries, self.time_limit = retries, time_limit
        self.cpus, self.gpus = cpus, gpus
        self.traffic = Traffic()
        self.users = weakref.WeakSet()
        _join(address)
        _OPEN.add(self)
        _register()
        self._asked = workers
        self._keys = itertools.count()
        self._pool = _Pool(self)
        self._open = True

    @property
    def workers(self) -> int:
        """Actors that fit on the cluster, or as many as were asked for."""
        room = ray.cluster_resources()
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        fit = sum(self._fit_on(node) for node in nodes)
        if fit < 1:
            raise EngineError(
                f"no worker with {self.cpus} CPUs and {self.gpus} GPUs fits on the cluster, which has "
                f"{room.get('CPU', 0):g} CPUs and {room.get('GPU', 0):g} GPUs"
            )
        return fit if self._asked is None else self._asked

    def _fit_on(self, resources: dict[str, float]) -> int:
        """Workers that fit on a node."""
        by_cpu = (
            resources.get("CPU", 0) / self.cpus if self.cpus else max(1, resources.get("CPU", 0))
        )
        by_gpu = resources.get("GPU", 0) / self.gpus if self.gpus else by_cpu
        return int(min(by_cpu, by_gpu))

    def __deepcopy__(self, memo: Any) -> RayEngine:
        """An engine is where things are: copies of what uses it use the same one."""
        return self

    def __reduce__(self) -> Any:
        raise TypeError(
            "an engine cannot be pickled, nor what lives in its workers: save the regressor to a file, or "
            "call gather() on the regressor and give it engine='local'"
        )

    def scatter(
        self, sources: Sequence[Callable[[], Item]], names: Sequence[str]
    ) -> RayPlacement[Item]:
        """One actor an item; the actor makes it from its source."""
        self._pool.check_open()
        for source in sources:
            self.traffic.send(source)
        if len(sources) > self._pool.grow(len(sources)):
            raise ValueError(f"expected at most {self.workers} sources, got {len(sources)}")
        step = _Step(self.next_key(), None, None, [ray.put(source) for source in sources])
        members = tuple(range(len(sources)))
        placement: RayPlacement[Item] = RayPlacement(self, (step,), members, tuple(names))
        self._pool.run(members, lambda w: self._pool.replay(w, (step,)), names)
        return placement

    def actor(self, crowded: bool = False) -> Any:
        """A new worker; `crowded`: on CPUs that others have already."""
        cpus, gpus = (0, 0) if crowded else (self.cpus, self.gpus)
        device, threads = "cuda" if gpus else "cpu", max(1, int(self.cpus))
        options = {"num_cpus": cpus, "num_gpus": gpus, "max_restarts": 0}
        return ray.remote(_Worker).options(**options).remote(device, threads)

    def next_key(self) -> int:
        """A number that no item has yet."""
        return next(self._keys)

    def close(self) -> None:
        """Stop the actors; and the cluster, if this engine started it."""
        if not self._open:
            return
        self._open = False
        self._pool.dismiss()
        _OPEN.discard(self)
        _leave()

    def __del__(self) -> None:
        try:
            self.close()
        except Exception:  # pragma: no cover - the interpreter may be going down
            return


class _Pool:
    """The actors of an engine, and how a lost one is replaced."""

    def __init__(self, engine: RayEngine) -> None:
        self.engine = weakref.proxy(engine)
        self.actors: list[Any] = []
        self.live: weakref.WeakSet[RayPlacement[Any]] = weakref.WeakSet()

    def check_open(self) -> None:
        """Refuse work after `close`."""
        if not self.engine._open or not ray.is_initialized():
            raise EngineError(
                "this engine is closed and what lived in its workers is gone: fit again with a new one "
                "(gather() before closing keeps a model)"
            )

    def grow(self, size: int) -> int:
        """Have this many actors, or as many as the engine may; how many there are."""
        new = [self.engine.actor() for _ in range(len(self.actors), min(size, self.engine.workers))]
        self.actors += new
        waiting = [actor.pid.remote() for actor in new]
        ready, late = (
            ray.wait(waiting, num_returns=len(waiting), timeout=START_LIMIT) if new else ([], [])
        )
        if late:
            del self.actors[-len(new) :]
            raise EngineError(
                f"{len(late)} of {len(new)} new workers did not start within {START_LIMIT:g} s: each needs "
                f"{self.engine.cpus:g} CPUs and {self.engine.gpus:g} GPUs, and of the cluster's "
                f"{ray.cluster_resources().get('CPU', 0):g} CPUs "
                f"{ray.available_resources().get('CPU', 0):g} are free. Use fewer workers, or free some"
            )
        del ready
        return len(self.actors)

    def forget(self, members: Sequence[int], key: int) -> None:
        """Take an item off the shelves."""
        for worker in members:
            if worker < len(self.actors):
                self.actors[worker].forget.remote(key)

    def replay(self, worker: int, steps: Sequence[_Step]) -> Any:
        """Have a worker take these steps; a reference to the last."""
        actor, reference = self.actors[worker], None
        for step in steps:
            if step.parent is None:
                reference = actor.make.remote(step.key, step.arguments[worker])
            else:
                reference = actor.derive.remote(
                    step.key, step.parent, step.function, step.arguments
                )
        return reference

    def rebuild(self, worker: int) -> None:
        """A new actor with all that the lost one held."""
        ray.kill(self.actors[worker], no_restart=True)
        self.actors[worker] = self._replacement()
        live = [placement for placement in self.live if worker in placement.held]
        steps = {step.key: step for placement in live for step in placement.steps}
        if steps:
            last = self.replay(worker, [steps[key] for key in sorted(steps)])
            ray.get(last, timeout=self.engine.time_limit)
        for key in steps.keys() - {placement.key for placement in live}:
            self.actors[worker].forget.remote(key)

    def _replacement(self) -> Any:
        """A new actor where there is room, else beside another: with a node its CPUs are lost too."""
        if ray.available_resources().get("CPU", 0) >= self.engine.cpus:
            actor = self.engine.actor()
            started, _ = ray.wait([actor.pid.remote()], timeout=REPLACE_LIMIT)
            if started:
                return actor
            ray.kill(actor, no_restart=True)
        return self.engine.actor(crowded=True)

    def run(
        self, members: Sequence[int], submit: Callable[[int], Any], names: Sequence[str]
    ) -> list[Any]:
        """One round: submit(worker) for every member, lost ones replaced and repeated."""
        self.check_open()
        begin, attempts = time.monotonic(), dict.fromkeys(members, 0)
        called = dict(zip(members, names, strict=True))
        results: dict[int, Any] = {}
        pending = {submit(worker): worker for worker in members}
        while pending:
            ready, _ = ray.wait(list(pending), timeout=self._time_left(begin))
            if not ready:
                late = ", ".join(called[w] for w in pending.values())
                for worker in pending.values():  # it is made anew when it is needed next
                    ray.kill(self.actors[worker], no_restart=True)
                raise EngineError(
                    f"a round took longer than its limit of {self.engine.time_limit:g} s; still at work: "
                    f"{late}. Raise time_limit, or use more or smaller shards"
                )
            worker = pending.pop(ready[0])
            try:
                results[worker] = ray.get(ready[0])
            except RayTaskError as error:
                cause = _cause(error)
                cause.add_note(f"on the worker with {called[worker]}")
                raise cause from error
            except RayError as error:
                self._replace(worker, called[worker], attempts, error)
                pending[submit(worker)] = worker
        return [results[worker] for worker in members]

    def _replace(self, worker: int, name: str, attempts: dict[int, int], error: Exception) -> None:
        """A new actor for a lost one; again if that is lost too, until the retries are used up."""
        while True:
            attempts[worker] += 1
            if attempts[worker] > self.engine.retries:
                said = str(error).strip().splitlines()[0]
                raise EngineError(
                    f"the worker with {name} was lost {attempts[worker]} times in one round, and "
                    f"{self.engine.retries} retries are allowed: {said}"
                ) from error
            try:
                self.rebuild(worker)
                return
            except RayTaskError as failure:
                raise EngineError(
                    f"the worker with {name} was lost, and making its part again failed: "
                    f"{_cause(failure)}"
                ) from failure
            except RayError as again:
                error = again

    def _time_left(self, begin: float) -> float | None:
        limit = self.engine.time_limit
        return None if limit is None else max(0.0, begin + limit - time.monotonic())

    def dismiss(self) -> None:
        """Stop the actors."""
        if ray.is_initialized():
            for actor in self.actors:
                ray.kill(actor, no_restart=True)
        self.actors.clear()


def _cause(error: RayTaskError) -> Exception:
    """What went wrong on the worker, as it was raised there."""
    return error.cause if isinstance(error.cause, Exception) else error


class RayPlacement(Placement[Item], Generic[Item]):
    """Items on the shelves of an engine's actors."""

    def __init__(
        self,
        engine: RayEngine,
        steps: tuple[_Step, ...],
        members: tuple[int, ...],
        names: tuple[str, ...],
        held: tuple[int, ...] | None = None,
    ) -> None:
        self.engine, self.steps, self.members, self.names = engine, steps, members, names
        self.held = members if held is None else held
        """Workers that have anything under the key, if only None."""
        engine._pool.live.add(self)

    @property
    def key(self) -> int:
        """The items' number on every shelf."""
        return self.steps[-1].key

    def map(self, function: Callable[..., Result], *arguments: Any) -> list[Result]:
        """All workers at once."""
        return self._round(len(self.members), function, arguments)

    def first(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """The first worker alone."""
        return self._round(1, function, arguments)[0]

    def derive(self, function: Callable[..., Any], *arguments: Any) -> RayPlacement[Any]:
        """Each worker puts what it makes onto its own shelf."""
        sent = self._sent(arguments, len(self.members))
        step = _Step(self.engine.next_key(), self.key, function, sent)
        pool = self.engine._pool
        try:
            made = pool.run(self.members, lambda w: pool.replay(w, [step]), self.names)
        except Exception:
            pool.forget(self.members, step.key)
            raise
        there = [i for i, kept in enumerate(made) if kept]
        return RayPlacement(
            self.engine,
            (*self.steps, step),
            tuple(self.members[i] for i in there),
            tuple(self.names[i] for i in there),
            self.members,
        )

    def here(self) -> tuple[Item, ...]:
        """A copy of every item."""
        return tuple(self.map(_itself))

    def pids(self) -> list[int]:
        """The processes of the workers."""
        actors = self.engine._pool.actors
        return ray.get([actors[w].pid.remote() for w in self.members])

    def _round(
        self, count: int, function: Callable[..., Any], arguments: tuple[Any, ...]
    ) -> list[Any]:
        members, names, pool = self.members[:count], self.names[:count], self.engine._pool
        sent = self._sent(arguments, count)
        results = pool.run(
            members, lambda w: pool.actors[w].apply.remote(self.key, function, sent), names
        )
        for result in results:
            self.engine.traffic.receive(result)
        return results

    def _sent(self, arguments: tuple[Any, ...], copies: int) -> Any:
        """The arguments, once in the object store where they are large."""
        size = measured(arguments).total()
        self.engine.traffic.send(arguments, copies)
        return ray.put(arguments) if size > SMALL else arguments

    def __del__(self) -> None:
        try:
            if ray.is_initialized() and self.engine._open:
                self.engine._pool.forget(self.held, self.key)
        except Exception:  # a lost actor has forgotten already; an interpreter may be going down
            return

    def __reduce__(self) -> Any:
        raise TypeError(
            "these experts live in the workers of a cluster and cannot be pickled: call gather() on the "
            "regressor first, or save it to a file"
        )


def _itself(item: Any) -> Any:
    return item
