"""The cluster and the actors of a Ray engine: an actor that dies, alone or with its node, is replaced.

The new one takes the same steps, and its part of the round is repeated. Actors hold nothing but what
these steps made, so the round gives what it would have given.
"""

from __future__ import annotations

import importlib
import itertools
import os
import secrets
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import ray
import torch
from ray.exceptions import RayError, RayTaskError
from torch import Tensor

from distgp._util.checks import warn_user
from distgp.engines.base import EngineError, EngineWarning, Function, released

if TYPE_CHECKING:
    from distgp.engines.ray import RayPlacement

CONNECT_LIMIT = 5.0
"""Seconds that a machine may take to accept a connection."""
ANSWER_LIMIT = 20.0
"""Seconds that a cluster may take to answer."""
_UNKNOWN = 77
"""The exit code of `_ASK` where this version of Ray cannot be asked so."""
_ASK = f"""
import sys
try:
    from ray._private.services import canonicalize_bootstrap_address as resolved
    from ray._raylet import GcsClient
except ImportError:
    sys.exit({_UNKNOWN})
GcsClient(address=resolved(sys.argv[1]))
"""
"""The question of a process without a token to a cluster; Ray itself would try for minutes."""
_DEVICE = ["cpu"]
"""The device that tensors are put on when they arrive in this process."""


def _to_array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().cpu().numpy()


def _from_array(array: np.ndarray) -> Tensor:
    return torch.from_numpy(np.array(array)).to(_DEVICE[0])


def register_tensors() -> None:
    """Have tensors travel as arrays, and arrive on the receiver's own `_DEVICE`."""
    ray.util.register_serializer(Tensor, serializer=_to_array, deserializer=_from_array)


class Worker:
    """An actor: a shelf of items, by number."""

    def __init__(self, device: str, threads: int) -> None:
        torch.set_num_threads(threads)
        _DEVICE[0] = device
        register_tensors()
        self._shelf: dict[int, Any] = {}

    def make(self, key: int, source: Callable[[], Any]) -> None:
        """Put what a source makes onto the shelf."""
        self._shelf[key] = source()

    def derive(
        self, key: int, parent: int, function: Function, shared: Sequence[Any], own: Sequence[Any]
    ) -> bool:
        """Put what a function makes of an item onto the shelf; return whether it is more than None."""
        self._shelf[key] = function(self._shelf[parent], *shared, *own)
        return self._shelf[key] is not None

    def apply(
        self,
        key: int,
        function: Function,
        shared: Sequence[Any],
        own: Sequence[Any],
        may_leave: Collection[str] | None,
    ) -> Any:
        """Call a function on an item with the arguments of all workers, then this one's own."""
        return released(function(self._shelf[key], *shared, *own), function, may_leave)

    def forget(self, key: int) -> None:
        """Take an item off the shelf."""
        self._shelf.pop(key, None)

    def pid(self) -> int:
        """Return the number of the actor's process."""
        return os.getpid()


@dataclass(frozen=True)
class Step:
    """A step by which items come onto the shelves: from a parent, or without one from sources in `own`."""

    key: int
    parent: int | None
    function: Function | None
    shared: Any  # a tuple, or a reference to one
    own: Mapping[int, Any]


START_LIMIT = 120.0
"""Seconds that new actors may take to start."""
REPLACE_LIMIT = 20.0
"""Seconds that a replacement may wait for a CPU of its own before it shares one."""


class Gone(Exception):
    """Raised for a part of a lost worker that could not be made again, with the reason."""

    def __init__(self, why: Exception) -> None:
        super().__init__(str(why))
        self.why = why


class Pool:
    """The actors of one engine, with the engine's options."""

    def __init__(self, cpus: float, gpus: float, retries: int, time_limit: float | None) -> None:
        self.cpus, self.gpus = cpus, gpus
        self.retries, self.time_limit = retries, time_limit
        self.open = True
        self.actors: list[Any] = []
        self.live: weakref.WeakSet[RayPlacement[Any]] = weakref.WeakSet()
        self._gone: dict[tuple[int, int], Exception] = {}
        self.keys = itertools.count()

    def check_open(self) -> None:
        """Refuse work after the engine was closed."""
        if not self.open or not ray.is_initialized():
            raise EngineError(
                "this engine is closed and what lived in its workers is gone: fit again with a new one "
                "(gather() before closing keeps a model)"
            )

    def grow(self, size: int) -> None:
        """Start actors until there are this many."""
        new = [self._actor() for _ in range(len(self.actors), size)]
        waiting = [actor.pid.remote() for actor in new]
        _, late = ray.wait(waiting, num_returns=len(new), timeout=START_LIMIT) if new else ([], [])
        if late:
            raise EngineError(
                f"{len(late)} of {len(new)} new workers did not start within {START_LIMIT:g} s: each needs "
                f"{self.cpus:g} CPUs and {self.gpus:g} GPUs, and of the cluster's "
                f"{ray.cluster_resources().get('CPU', 0):g} CPUs "
                f"{ray.available_resources().get('CPU', 0):g} are free. Use fewer workers, or free some"
            )
        self.actors += new

    def actor_with(self, worker: int, key: int) -> Any:
        """Return the actor of a worker that has an item, unless a lost item could not be made again."""
        if (worker, key) in self._gone:
            raise Gone(self._gone[worker, key])
        return self.actors[worker]

    def replay(self, worker: int, step: Step) -> Any:
        """Have a worker take a step, and return a reference to its answer."""
        if step.parent is None:
            return self.actors[worker].make.remote(step.key, step.own[worker])
        return self.actor_with(worker, step.parent).derive.remote(
            step.key, step.parent, step.function, step.shared, step.own.get(worker, ())
        )

    def take(self, workers: Sequence[int], step: Step, names: Sequence[str]) -> list[Any]:
        """Have these workers take a step, in one round; a step that fails leaves nothing behind."""
        self.check_open()
        try:
            return self.run(workers, lambda worker: self.replay(worker, step), names)
        except Exception:
            self.forget(workers, step.key)
            raise

    def forget(self, workers: Sequence[int], key: int) -> None:
        """Take an item off the workers' shelves."""
        for worker in workers:
            if worker < len(self.actors):
                self.actors[worker].forget.remote(key)

    def run(
        self, workers: Sequence[int], submit: Callable[[int], Any], names: Sequence[str]
    ) -> list[Any]:
        """Run one round by `submit`, which returns a reference to a worker's answer; repeat lost parts."""
        self.check_open()
        begin, lost = time.monotonic(), dict.fromkeys(workers, 0)
        called = dict(zip(workers, names, strict=True))
        results: dict[int, Any] = {}
        pending = {_submitted(submit, worker, called[worker]): worker for worker in workers}
        while pending:
            ready, _ = ray.wait(list(pending), timeout=self._time_left(begin))
            if not ready:
                raise self._too_late([*pending.values()], called)
            worker = pending.pop(ready[0])
            try:
                results[worker] = ray.get(ready[0])
            except RayTaskError as error:
                cause = _cause(error)
                cause.add_note(f"on the worker with {called[worker]}")
                raise cause from error
            except RayError as error:
                self._replace(worker, called[worker], lost, error)
                pending[_submitted(submit, worker, called[worker])] = worker
        return [results[worker] for worker in workers]

    def dismiss(self) -> None:
        """Stop the actors for good."""
        self.open = False
        if ray.is_initialized():
            for actor in self.actors:
                ray.kill(actor, no_restart=True)
        self.actors.clear()

    def _actor(self, crowded: bool = False) -> Any:
        """Start a new actor; `crowded`: on CPUs that others have already."""
        cpus, gpus = (0, 0) if crowded else (self.cpus, self.gpus)
        device, threads = "cuda" if gpus else "cpu", max(1, int(self.cpus))
        options = {"num_cpus": cpus, "num_gpus": gpus, "max_restarts": 0}
        return ray.remote(Worker).options(**options).remote(device, threads)

    def _time_left(self, begin: float) -> float | None:
        limit = self.time_limit
        return None if limit is None else max(0.0, begin + limit - time.monotonic())

    def _too_late(self, workers: Sequence[int], called: Mapping[int, str]) -> EngineError:
        """Stop workers that are still at work; each is made anew when it is needed next."""
        for worker in workers:
            ray.kill(self.actors[worker], no_restart=True)
        late = ", ".join(called[worker] for worker in workers)
        return EngineError(
            f"a round took longer than its limit of {self.time_limit:g} s; still at work: "
            f"{late}. Raise time_limit, or use more or smaller shards"
        )

    def _replace(self, worker: int, name: str, lost: dict[int, int], error: Exception) -> None:
        """Replace a lost actor, and its replacement if that is lost too, as often as allowed."""
        while True:
            lost[worker] += 1
            if lost[worker] > self.retries:
                said = str(error).strip().splitlines()[0]
                raise EngineError(
                    f"the worker with {name} was lost {lost[worker]} times in one round, and "
                    f"{self.retries} retries are allowed: {said}"
                ) from error
            try:
                self._rebuild(worker)
                return
            except RayError as again:
                error = again

    def _rebuild(self, worker: int) -> None:
        """Start a new actor and have it make all that the lost one held; note what cannot be made again."""
        ray.kill(self.actors[worker], no_restart=True)
        self.actors[worker] = self._replacement()
        self._gone = {place: why for place, why in self._gone.items() if place[0] != worker}
        live = [placement for placement in self.live if worker in placement.held]
        steps = {step.key: step for placement in live for step in placement.steps}
        for key in sorted(steps):
            try:
                ray.get(self.replay(worker, steps[key]), timeout=self.time_limit)
            except RayTaskError as error:
                self._gone[worker, key] = _cause(error)
            except Gone as error:
                self._gone[worker, key] = error.why
        for key in steps.keys() - {placement.steps[-1].key for placement in live}:
            self.actors[worker].forget.remote(key)  # needed on the way only

    def _replacement(self) -> Any:
        """Start an actor where there is room, else beside another: a lost node takes its CPUs along."""
        if ray.available_resources().get("CPU", 0) >= self.cpus:
            actor = self._actor()
            started, _ = ray.wait([actor.pid.remote()], timeout=REPLACE_LIMIT)
            if started:
                return actor
            ray.kill(actor, no_restart=True)
        return self._actor(crowded=True)


def _submitted(submit: Callable[[int], Any], worker: int, name: str) -> Any:
    """Return a reference to a worker's answer; an error names what could not be made again."""
    try:
        return submit(worker)
    except Gone as error:
        raise EngineError(
            f"the worker with {name} was lost, and making its part again failed: {error.why}"
        ) from error.why


def _cause(error: RayTaskError) -> Exception:
    """Get what went wrong on the worker, as it was raised there."""
    return error.cause if isinstance(error.cause, Exception) else error


def start() -> None:
    """Start a cluster that only this machine's own processes can reach, and only with its token."""
    _require_token()
    if os.environ.get("RAY_AUTH_MODE", "").lower() == "token":
        _keep_token_private()
    constants: Any = importlib.import_module("ray._private.ray_constants")
    # Ray would listen on all interfaces on Linux; this is its switch for macOS and Windows.
    before = getattr(constants, "ENABLE_RAY_CLUSTER", True)
    try:
        constants.ENABLE_RAY_CLUSTER = False
        ray.init(
            address="local",
            include_dashboard=False,
            log_to_driver=False,
            _node_ip_address="127.0.0.1",
        )
    finally:
        constants.ENABLE_RAY_CLUSTER = before
    if not ray.get_runtime_context().gcs_address.startswith("127.0.0.1:"):
        warn_user(
            f"this version of Ray ({ray.__version__}) listens on all network interfaces: use a firewall, "
            "or another version",
            EngineWarning,
        )


def check_reachable(address: str) -> None:
    """Refuse an address at which no cluster answers soon; warn where one asks for no token."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if address != "auto":
        if not host or not port.isdigit():
            raise ConnectionError("expected 'auto', 'host:port' or 'ray://host:port'")
        try:
            socket.create_connection((host.strip("[]"), int(port)), CONNECT_LIMIT).close()
        except (OSError, OverflowError) as error:
            raise ConnectionError(f"nothing answers there ({error})") from error
    if address.startswith("ray://"):
        return
    command = [sys.executable, "-c", _ASK, address]
    environment = os.environ | {"RAY_AUTH_MODE": "disabled"}
    try:
        asked = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=ANSWER_LIMIT
        )
    except subprocess.TimeoutExpired as error:
        raise ConnectionError(
            f"something answers there, but not as Ray {ray.__version__} does, within {ANSWER_LIMIT:g} s"
        ) from error
    if asked.returncode == 0:
        warn_user(
            f"the Ray cluster at {address} asks for no token: whoever can reach it can run code on it and "
            "read your rows. Start it with RAY_AUTH_MODE=token",
            EngineWarning,
        )
    elif asked.returncode != _UNKNOWN and "AuthenticationError" not in asked.stderr:
        raise ConnectionError((asked.stderr.strip().splitlines() or ["no reason given"])[-1])


def _require_token() -> None:
    """Have clusters that are started from here ask for a token, unless the user has said otherwise."""
    if "RAY_AUTH_MODE" in os.environ:
        return
    try:
        tokens: Any = importlib.import_module(
            "ray._private.authentication.authentication_token_setup"
        )
    except ImportError:
        warn_user(
            f"this version of Ray ({ray.__version__}) has no authentication: other users of this machine "
            "can reach the cluster. Install ray>=2.52",
            EngineWarning,
        )
        return
    os.environ["RAY_AUTH_MODE"] = "token"
    tokens.Config.initialize("")  # this process has read the variable already


def _keep_token_private() -> None:
    """Make the file of the token, or close it to others: Ray's own can be read by every user."""
    path = Path.home() / ".ray" / "auth_token"
    with suppress(PermissionError, FileExistsError):  # somebody else's, or made at this moment
        if path.exists():
            path.chmod(path.stat().st_mode & 0o700)
        elif not {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & set(os.environ):
            path.parent.mkdir(0o700, exist_ok=True)
            with open(
                path, "x", encoding="ascii", opener=lambda name, flags: os.open(name, flags, 0o600)
            ) as file:
                file.write(secrets.token_hex(32))
