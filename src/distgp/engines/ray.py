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

from distgp.engines.base import Engine, EngineError, Item, Placement, Result, Traffic

try:
    import ray
    from ray.exceptions import RayError, RayTaskError
except ImportError as error:  # pragma: no cover - depends on the installation
    raise ImportError(
        "engine='ray' needs Ray, which is not installed: pip install 'distgp[ray]'"
    ) from error

SMALL = 2**16
"""Bytes of arguments up to which they travel with each call; more go once through the object store."""


def _register(device: str) -> None:
    """Tensors travel as arrays, from any device, and arrive on the device of the receiver."""
    ray.util.register_serializer(
        Tensor,
        serializer=lambda tensor: tensor.detach().cpu().numpy(),
        deserializer=lambda array: torch.from_numpy(np.array(array)).to(device),
    )


class _Worker:
    """What runs in an actor: a shelf of items, by number."""

    def __init__(self, device: str, threads: int) -> None:
        torch.set_num_threads(threads)
        _register(device)
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
    """How an item came onto the shelf: from its parent, or from the worker's source."""

    key: int
    parent: int | None
    function: Callable[..., Any] | None
    arguments: Any  # an object reference, or the arguments


class RayEngine(Engine):
    """Workers are actors on a Ray cluster.

    address: of a cluster to join ("auto", "ray://…", "host:port"; default: RAY_ADDRESS, else a cluster
    is started on this machine and stopped with the engine). workers: how many actors at most
    (default: one for every `cpus` CPUs of the cluster). cpus, gpus: what each actor takes; with gpus
    its tensors live on the GPU. retries: how often the work of one worker is repeated in one round
    when it is lost. time_limit: seconds that a round may take.
    """

    name: ClassVar[str] = "ray"

    def __init__(
        self,
        address: str | None = None,
        workers: int | None = None,
        cpus: float = 1,
        gpus: float = 0,
        retries: int = 3,
        time_limit: float | None = None,
    ) -> None:
        self.retries, self.time_limit = retries, time_limit
        self.cpus, self.gpus = cpus, gpus
        self.traffic = Traffic()
        self._started = not ray.is_initialized()
        if self._started:
            ray.init(address=address, include_dashboard=False, log_to_driver=False)
        _register("cpu")
        self._asked = workers
        self._keys = itertools.count()
        self._placements: weakref.WeakSet[RayPlacement[Any]] = weakref.WeakSet()
        self._open = True

    @property
    def workers(self) -> int:
        """Actors that fit on the cluster, or as many as were asked for."""
        room = ray.cluster_resources()
        fit = int(room.get("CPU", 1) / self.cpus) if self.cpus else int(room.get("CPU", 1))
        if self.gpus:
            fit = min(fit, int(room.get("GPU", 0) / self.gpus))
        if fit < 1:
            raise EngineError(
                f"no worker with {self.cpus} CPUs and {self.gpus} GPUs fits on the cluster, which has "
                f"{room.get('CPU', 0):g} CPUs and {room.get('GPU', 0):g} GPUs"
            )
        return fit if self._asked is None else self._asked

    def scatter(
        self, sources: Sequence[Callable[[], Item]], names: Sequence[str]
    ) -> RayPlacement[Item]:
        """One actor an item; the actor makes it from its source."""
        if not self._open:
            raise EngineError("this engine is closed: make a new one")
        for source in sources:
            self.traffic.send(source)
        crew = _Crew(self, [ray.put(source) for source in sources], list(names))
        step = _Step(next(self._keys), None, None, None)
        placement: RayPlacement[Item] = RayPlacement(crew, (step,), tuple(range(len(sources))))
        crew.run(placement.members, lambda w: crew.replay(w, placement.steps), build=False)
        self._placements.add(placement)
        return placement

    def _actor(self) -> Any:
        device = "cuda" if self.gpus else "cpu"
        threads = max(1, int(self.cpus))
        options = {"num_cpus": self.cpus, "num_gpus": self.gpus, "max_restarts": 0}
        return ray.remote(_Worker).options(**options).remote(device, threads)

    def next_key(self) -> int:
        """A number that no item has yet."""
        return next(self._keys)

    def close(self) -> None:
        """Stop the actors; and the cluster, if this engine started it."""
        if not self._open:
            return
        self._open = False
        for placement in list(self._placements):
            placement.crew.dismiss()
        if self._started and ray.is_initialized():
            ray.shutdown()

    def __del__(self) -> None:
        try:
            self.close()
        except Exception:  # pragma: no cover - the interpreter may be going down
            return


class _Crew:
    """The actors that hold the items of one data set, and what they are to do when one is lost."""

    def __init__(self, engine: RayEngine, sources: list[Any], names: list[str]) -> None:
        self.engine, self.sources, self.names = engine, sources, names
        self.actors = [engine._actor() for _ in sources]
        self.live: weakref.WeakSet[RayPlacement[Any]] = weakref.WeakSet()

    def replay(self, worker: int, steps: tuple[_Step, ...]) -> Any:
        """Have a worker make everything along the way to an item; the last call's reference."""
        actor, reference = self.actors[worker], None
        for step in steps:
            if step.parent is None:
                reference = actor.make.remote(step.key, self.sources[worker])
            else:
                reference = actor.derive.remote(
                    step.key, step.parent, step.function, step.arguments
                )
        return reference

    def renew(self, worker: int) -> None:
        """An empty actor in the place of a lost one."""
        ray.kill(self.actors[worker], no_restart=True)
        self.actors[worker] = self.engine._actor()

    def rebuild(self, worker: int) -> None:
        """A new actor with all that the lost one held."""
        self.renew(worker)
        live = sorted(self.live, key=lambda placement: placement.key)
        steps = {step.key: step for placement in live for step in placement.steps}
        ray.get(self.replay(worker, tuple(steps[key] for key in sorted(steps))))
        for key in steps.keys() - {placement.key for placement in live}:
            self.actors[worker].forget.remote(key)

    def run(
        self, members: Sequence[int], submit: Callable[[int], Any], build: bool = True
    ) -> list[Any]:
        """One round: submit(worker) for every member, lost ones replaced and repeated."""
        begin, attempts = time.monotonic(), dict.fromkeys(members, 0)
        results: dict[int, Any] = {}
        pending = {submit(worker): worker for worker in members}
        while pending:
            ready, _ = ray.wait(list(pending), timeout=self._time_left(begin))
            if not ready:
                late = ", ".join(self.names[w] for w in pending.values())
                raise EngineError(
                    f"a round took longer than its limit of {self.engine.time_limit:g} s; still at work: "
                    f"{late}. Raise time_limit, or use more or smaller shards"
                )
            worker = pending.pop(ready[0])
            try:
                results[worker] = ray.get(ready[0])
            except RayTaskError as error:
                raise error.cause if isinstance(error.cause, Exception) else error from error
            except RayError as error:
                self._replace(worker, attempts, error, build)
                pending[submit(worker)] = worker
        return [results[worker] for worker in members]

    def _replace(
        self, worker: int, attempts: dict[int, int], error: Exception, build: bool
    ) -> None:
        """A new actor for a lost one; again if that is lost too, until the retries are used up."""
        while True:
            attempts[worker] += 1
            if attempts[worker] > self.engine.retries:
                said = str(error).strip().splitlines()[0]
                raise EngineError(
                    f"the worker with {self.names[worker]} was lost {attempts[worker]} times in one "
                    f"round, and {self.engine.retries} retries are allowed: {said}"
                ) from error
            try:
                self.rebuild(worker) if build else self.renew(worker)
                return
            except RayTaskError as failure:
                cause = failure.cause if isinstance(failure.cause, Exception) else failure
                raise EngineError(
                    f"the worker with {self.names[worker]} was lost, and making its part again failed: "
                    f"{cause}"
                ) from cause
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


class RayPlacement(Placement[Item], Generic[Item]):
    """Items on the shelves of a crew's actors."""

    def __init__(self, crew: _Crew, steps: tuple[_Step, ...], members: tuple[int, ...]) -> None:
        self.crew, self.steps, self.members = crew, steps, members
        crew.live.add(self)

    @property
    def key(self) -> int:
        """The items' number on every shelf."""
        return self.steps[-1].key

    def map(self, function: Callable[..., Result], *arguments: Any) -> list[Result]:
        """All workers at once."""
        return self._round(self.members, function, arguments)

    def first(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """The first worker alone."""
        return self._round(self.members[:1], function, arguments)[0]

    def derive(self, function: Callable[..., Any], *arguments: Any) -> RayPlacement[Any]:
        """Each worker puts what it makes onto its own shelf."""
        crew = self.crew
        sent = self._sent(arguments, len(self.members))
        step = _Step(crew.engine.next_key(), self.key, function, sent)
        actors = crew.actors
        made = crew.run(
            self.members,
            lambda w: actors[w].derive.remote(step.key, self.key, function, sent),
        )
        kept = tuple(w for w, there in zip(self.members, made, strict=True) if there)
        placement: RayPlacement[Any] = RayPlacement(crew, (*self.steps, step), kept)
        crew.engine._placements.add(placement)
        return placement

    def here(self) -> tuple[Item, ...]:
        """A copy of every item."""
        return tuple(self.map(_itself))

    def pids(self) -> list[int]:
        """The processes of the workers."""
        return ray.get([self.crew.actors[w].pid.remote() for w in self.members])

    def _round(
        self, members: tuple[int, ...], function: Callable[..., Any], arguments: tuple[Any, ...]
    ) -> list[Any]:
        sent, actors = self._sent(arguments, len(members)), self.crew.actors
        results = self.crew.run(members, lambda w: actors[w].apply.remote(self.key, function, sent))
        for result in results:
            self.crew.engine.traffic.receive(result)
        return results

    def _sent(self, arguments: tuple[Any, ...], copies: int) -> Any:
        """The arguments, once in the object store where they are large."""
        traffic = self.crew.engine.traffic
        before = traffic.sent.total()
        traffic.send(arguments, copies)
        large = (traffic.sent.total() - before) > SMALL * copies
        return ray.put(arguments) if large else arguments

    def __del__(self) -> None:
        try:
            if ray.is_initialized() and self.crew.engine._open:
                for worker in self.members:
                    self.crew.actors[worker].forget.remote(self.key)
        except Exception:  # pragma: no cover - a lost actor has forgotten already
            return

    def __reduce__(self) -> Any:
        raise TypeError(
            "these experts live in the workers of a cluster and cannot be pickled: call gather() on the "
            "regressor first, or save it to a file"
        )


def _itself(item: Any) -> Any:
    return item
