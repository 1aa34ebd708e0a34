"""The Ray engine: every item lives in an actor of its own, on a cluster."""

from __future__ import annotations

import math
import os
import weakref
from collections.abc import Callable, Collection, Sequence
from typing import Any, ClassVar

from distgp._util.checks import is_integer, is_number
from distgp.engines.base import (
    Each,
    Engine,
    EngineError,
    EngineWarning,
    Function,
    Item,
    LocalPlacement,
    Placement,
    Result,
    bytes_by_kind,
    guarded,
    itself,
)

try:
    import ray
    from ray.exceptions import RayError
except ImportError as error:  # pragma: no cover - depends on the installation
    raise ImportError(
        "engine='ray' needs Ray, which is not installed: pip install 'distgp[ray]'"
    ) from error

from distgp._util.checks import warn_user
from distgp.engines.ray_pool import Pool, Step, check_reachable, register_tensors, start

SMALL = 2**16
"""Bytes of arguments up to which they travel with each call; more go once through the object store."""

_OPEN: weakref.WeakSet[RayEngine] = weakref.WeakSet()
_STARTED_HERE: list[bool] = []
"""Not empty while this module has connected the process to a cluster."""
_SHARED: list[RayEngine] = []


def shared_engine(device: object = None) -> RayEngine:
    """Return the engine behind engine="ray": one for all estimators of this process."""
    del device  # workers put tensors onto their own
    if not _SHARED or not _SHARED[0].pool.open or not ray.is_initialized():
        _SHARED[:] = [RayEngine()]
    return _SHARED[0]


class RayEngine(Engine):
    """A Ray cluster, whose actors are the workers.

    Parameters
    ----------
    address : str, optional
        The cluster to join: "auto", "ray://…" or "host:port". By default that of the environment variable
        RAY_ADDRESS; without one, a cluster is started on this machine and stopped with the engine.
    workers : int, optional
        The most actors; one for every `cpus` CPUs of the cluster by default. Where fewer fit, those
        that fit are used, with a warning.
    cpus : float, default=1
        The CPUs of the cluster that each actor takes.
    gpus : float, default=0
        The GPUs that each actor takes; with one, its tensors live there.
    retries : int
        How often the work of one worker is repeated in one round when it is lost.
    time_limit : float or None
        Seconds that a round may take; None for any.
    may_leave : collection of str, optional
        The kinds of results, of `distgp.engines.KINDS`, that may leave a worker; all by default.

    Examples
    --------
    >>> with RayEngine(workers=2) as engine:  # doctest: +SKIP
    ...     gp = distgp.DistributedGPRegressor(engine=engine).fit(X, y)
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
        may_leave: Collection[str] | None = None,
    ) -> None:
        _check_options(workers, cpus, gpus, retries, time_limit)
        super().__init__(may_leave)
        self.pool = Pool(cpus, gpus, retries, time_limit)
        self._asked, self._told = workers, False
        _join(address)
        _OPEN.add(self)
        register_tensors()

    @property
    def workers(self) -> int:
        """The actors that fit on the cluster, and at most as many as were asked for."""
        self.pool.check_open()
        room, pool = ray.cluster_resources(), self.pool
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        fit = sum(self._fit_on(node) for node in nodes)
        if fit < 1:
            raise EngineError(
                f"no worker with {pool.cpus} CPUs and {pool.gpus} GPUs fits on the cluster, which has "
                f"{room.get('CPU', 0):g} CPUs and {room.get('GPU', 0):g} GPUs"
            )
        if self._asked is not None and self._asked > fit and not self._told:
            self._told = True
            warn_user(
                f"{self._asked} workers with {pool.cpus:g} CPUs were asked for, and {fit} fit on the "
                f"cluster with its {room.get('CPU', 0):g} CPUs: going on with {fit}",
                EngineWarning,
            )
        return fit if self._asked is None else min(fit, self._asked)

    def _fit_on(self, resources: dict[str, float]) -> int:
        """Count the actors that fit on a node."""
        cpus, gpus = resources.get("CPU", 0), resources.get("GPU", 0)
        by_cpu = cpus / self.pool.cpus if self.pool.cpus else max(1, cpus)
        by_gpu = gpus / self.pool.gpus if self.pool.gpus else by_cpu
        return int(min(by_cpu, by_gpu))

    def scatter(
        self, sources: Sequence[Callable[[], Item]], names: Sequence[str]
    ) -> RayPlacement[Item]:
        """Give one actor each source to make its item from; keeps the sources to make it again."""
        self.pool.check_open()
        if len(sources) > self.workers:
            raise ValueError(f"expected at most {self.workers} sources, got {len(sources)}")
        for source in sources:
            self.traffic.send(source)
        self.pool.grow(len(sources))
        own = {worker: ray.put(source) for worker, source in enumerate(sources)}
        step = Step(next(self.pool.keys), None, None, (), own)
        self.pool.take(tuple(own), step, names)
        return guarded(RayPlacement(self, (step,), tuple(own), tuple(names)), self.may_leave)

    def close(self) -> None:
        """Stop the actors; and the cluster, if it was started here and no other engine uses it."""
        if self.pool.open:
            self.pool.dismiss()
            _OPEN.discard(self)
            _leave()

    def __del__(self) -> None:
        try:
            self.close()
        except Exception:  # pragma: no cover - the interpreter may be going down
            return

    def __deepcopy__(self, memo: dict[int, Any]) -> RayEngine:
        """Return the engine itself: copies of what uses it use the same one."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError(
            "an engine cannot be pickled, nor what lives in its workers: save the regressor to a file, or "
            "call gather() on the regressor and give it engine='local'"
        )


class RayPlacement(Placement[Item]):
    """Items on the shelves of an engine's actors.

    `steps` make the items; `members` are the workers that have one, `names` what errors call each, and
    `held` the workers that have something under the last step's key, if only None.
    """

    def __init__(
        self,
        engine: RayEngine,
        steps: tuple[Step, ...],
        members: tuple[int, ...],
        names: tuple[str, ...],
        held: tuple[int, ...] | None = None,
    ) -> None:
        self.engine, self.steps, self.members, self.names = engine, steps, members, names
        self.held = members if held is None else held
        self.key = steps[-1].key
        engine.pool.live.add(self)

    def __len__(self) -> int:
        return len(self.members)

    def map(
        self, function: Callable[..., Result], *arguments: Any, each: Each = None
    ) -> list[Result]:
        """Call the function on all items at once, each on its worker."""
        return self._round(self.members, function, arguments, each)

    def on_first(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Call the function on the first item alone."""
        return self._round(self.members[:1], function, arguments, None)[0]

    def derive(self, function: Function, *arguments: Any, each: Each = None) -> RayPlacement[Any]:
        """Have each worker put what it makes of its item onto its own shelf."""
        pool = self.engine.pool
        shared, own = self._sent(self.members, function, arguments, each)
        step = Step(next(pool.keys), self.key, function, shared, own)
        made = pool.take(self.members, step, self.names)
        there = [i for i, kept in enumerate(made) if kept]
        members = tuple(self.members[i] for i in there)
        names = tuple(self.names[i] for i in there)
        placement = RayPlacement(self.engine, (*self.steps, step), members, names, self.members)
        return guarded(placement, self.may_leave)

    def gather(self) -> LocalPlacement[Item]:
        """Bring a copy of every item into this process."""
        return LocalPlacement(tuple(self.map(itself)))

    def pids(self) -> list[int]:
        """The numbers of the workers' processes."""
        return ray.get([self.engine.pool.actors[w].pid.remote() for w in self.members])

    def _round(
        self,
        members: tuple[int, ...],
        function: Callable[..., Result],
        arguments: tuple[Any, ...],
        each: Each,
    ) -> list[Result]:
        pool = self.engine.pool
        shared, own = self._sent(members, function, arguments, each)

        def submit(worker: int) -> Any:
            actor, last = pool.actor_with(worker, self.key), own.get(worker, ())
            return actor.apply.remote(self.key, function, shared, last, self.may_leave)

        results = pool.run(members, submit, self.names[: len(members)])
        for result in results:
            self.engine.traffic.receive(result, function)
        return results

    def _sent(
        self, members: tuple[int, ...], function: Function, arguments: tuple[Any, ...], each: Each
    ) -> tuple[Any, dict[int, Any]]:
        """Count and prepare the arguments of all workers, and of each worker alone."""
        own = {} if each is None else dict(zip(members, each, strict=True))
        self.engine.traffic.call(function, arguments, each, len(members))
        return _stored(arguments), {worker: _stored((value,)) for worker, value in own.items()}

    def __del__(self) -> None:
        try:
            if ray.is_initialized() and self.engine.pool.open:
                self.engine.pool.forget(self.held, self.key)
        except Exception:  # a lost actor has forgotten already; an interpreter may be going down
            return

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError(
            "these experts live in the workers of a cluster and cannot be pickled: call gather() on the "
            "regressor first, or save it to a file"
        )


def _stored(arguments: tuple[Any, ...]) -> Any:
    """Put arguments into the object store where they are large; Ray resolves the reference."""
    return ray.put(arguments) if bytes_by_kind(arguments).total() > SMALL else arguments


def _check_options(
    workers: int | None, cpus: float, gpus: float, retries: int, time_limit: float | None
) -> None:
    """Refuse options of the engine that cannot be meant."""
    seconds = time_limit is None or (is_number(time_limit) and time_limit > 0)
    for name, value, fine, expected in (
        ("workers", workers, workers is None or (is_integer(workers) and workers >= 1),
         "a positive integer, or None for one per CPU"),
        ("cpus", cpus, is_number(cpus) and 0 <= cpus < math.inf, "a number of CPUs, 0 or more"),
        ("gpus", gpus, is_number(gpus) and 0 <= gpus < math.inf, "a number of GPUs, 0 or more"),
        ("retries", retries, is_integer(retries) and retries >= 0, "an integer, 0 or more"),
        ("time_limit", time_limit, seconds, "a positive number of seconds, or None for any"),
    ):  # fmt: skip
        if not fine:
            raise ValueError(f"{name} must be {expected}, got {value!r}")


def _join(address: str | None) -> None:
    """Connect to a cluster, or start one, unless the process is connected already."""
    if ray.is_initialized():
        if address not in (None, "auto", ray.get_runtime_context().gcs_address):
            raise EngineError(
                f"this process is connected to a Ray cluster already, so it cannot join {address!r}: "
                "call ray.shutdown() first, or leave out the address"
            )
        return
    # Left to itself, Ray would look for any cluster that was ever started on this machine, dead or alive.
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    try:
        if address == "local":
            start()
        else:
            check_reachable(address)
            ray.init(address=address, log_to_driver=False)
    except (ConnectionError, ValueError, RuntimeError, RayError) as error:
        there = "this machine" if address == "local" else address
        said = " ".join(str(error).split())[:300]
        raise EngineError(f"cannot reach a Ray cluster at {there}: {said}") from error
    _STARTED_HERE.append(True)


def _leave() -> None:
    """Disconnect, and stop a cluster that was started here, once no engine is open."""
    if _STARTED_HERE and not len(_OPEN):
        _STARTED_HERE.clear()
        if ray.is_initialized():
            ray.shutdown()
