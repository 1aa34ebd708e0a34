"""The engine for several GPUs of one machine: one worker per device, in this process."""

from __future__ import annotations

import io
import pickle
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, ClassVar, Generic

import torch
from torch import Tensor

from distgp.engines.base import Engine, Item, Placement, Result, Traffic
from distgp.engines.local import LocalPlacement


def moved(value: Any, device: torch.device) -> Any:
    """A copy of a value of any kind, with all tensors in it on a device.

    It is pickled and unpickled in memory; tensors are left out of that, and moved by themselves.
    """
    if isinstance(value, Tensor):
        return value.to(device)
    held: list[Tensor] = []
    buffer = io.BytesIO()

    class Pickler(pickle.Pickler):
        def persistent_id(self, obj: Any) -> int | None:
            if not isinstance(obj, Tensor):
                return None
            held.append(obj)
            return len(held) - 1

    class Unpickler(pickle.Unpickler):
        def persistent_load(self, pid: int) -> Tensor:
            return held[pid].to(device)

    Pickler(buffer, protocol=pickle.HIGHEST_PROTOCOL).dump(value)
    buffer.seek(0)
    return Unpickler(buffer).load()


@dataclass(frozen=True, eq=False)
class DevicesPlacement(Placement[Item], Generic[Item]):
    """Items on the devices of one machine; what travels between devices is counted.

    Parameters
    ----------
    items : tuple
        One per device that has one.
    devices : tuple of torch.device
        Where each item is.
    home : torch.device
        Where results are brought.
    traffic : Traffic
        Counts the bytes.
    """

    items: tuple[Item, ...]
    devices: tuple[torch.device, ...]
    home: torch.device
    traffic: Traffic

    def __len__(self) -> int:
        return len(self.items)

    def map(
        self,
        function: Callable[..., Result],
        *arguments: Any,
        each: Sequence[Any] | None = None,
    ) -> list[Result]:
        """Call the function on all items at the same time, and bring the results home."""
        found = self._on_all(function, arguments, each)
        for result in found:
            self.traffic.receive(result)
        return [moved(result, self.home) for result in found]

    def on_first(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Call the function on the first item alone."""
        first = DevicesPlacement(self.items[:1], self.devices[:1], self.home, self.traffic)
        return first.map(function, *arguments)[0]

    def derive(
        self, function: Callable[..., Any], *arguments: Any, each: Sequence[Any] | None = None
    ) -> DevicesPlacement[Any]:
        """Keep what the function makes of each item where the item is; None is left out."""
        made = zip(self._on_all(function, arguments, each), self.devices, strict=True)
        kept = [(item, device) for item, device in made if item is not None]
        items, devices = zip(*kept, strict=True) if kept else ((), ())
        return DevicesPlacement(tuple(items), tuple(devices), self.home, self.traffic)

    def gather(self) -> LocalPlacement[Item]:
        """Bring a copy of every item to the first device."""
        return LocalPlacement(tuple(self.map(_itself)))

    def _on_all(
        self, function: Callable[..., Any], arguments: Sequence[Any], each: Sequence[Any] | None
    ) -> list[Any]:
        """Call the function where the items are, one thread per device."""

        def call(place: int) -> Any:
            device = self.devices[place]
            own = arguments if each is None else (*arguments, each[place])
            self.traffic.send(own)
            here = moved(tuple(own), device)
            if device.type != "cuda":
                return function(self.items[place], *here)
            with torch.cuda.device(device):
                return function(self.items[place], *here)

        if len(self.items) < 2:
            return [call(place) for place in range(len(self.items))]
        gradients = torch.is_grad_enabled()

        def threaded(place: int) -> Any:
            with torch.set_grad_enabled(gradients):
                return call(place)

        with ThreadPoolExecutor(len(self.items)) as pool:
            return list(pool.map(threaded, range(len(self.items))))


class DevicesEngine(Engine):
    """One process with one worker per device, such as all GPUs of a machine.

    Parameters
    ----------
    devices : sequence of str, optional
        The devices, such as ``["cuda:0", "cuda:1"]``; all visible GPUs by default.
    """

    name: ClassVar[str] = "devices"

    def __init__(self, devices: Sequence[str | torch.device] | None = None) -> None:
        if devices is None:
            devices = [f"cuda:{i}" for i in range(torch.cuda.device_count())]
        self.devices = tuple(torch.device(device) for device in devices)
        if not self.devices:
            raise ValueError(
                "no GPU is visible: give the devices, such as DevicesEngine(['cuda:0', 'cuda:1']), or "
                "leave engine at 'local'"
            )
        self.traffic = Traffic()
        self.users = weakref.WeakSet()

    def __reduce__(self) -> Any:
        """Pickle as a new engine: nothing lives in the object itself."""
        return DevicesEngine, (self.devices,)

    @property
    def workers(self) -> int:
        """The number of devices."""
        return len(self.devices)

    def scatter(
        self, sources: Sequence[Callable[[], Item]], names: Sequence[str]
    ) -> DevicesPlacement[Item]:
        """Make the items, each on its device; the first devices where there are fewer items."""
        del names
        devices = [self.devices[i % len(self.devices)] for i in range(len(sources))]
        pairs = zip(sources, devices, strict=True)
        items = tuple(moved(source(), device) for source, device in pairs)
        return DevicesPlacement(items, tuple(devices), self.devices[0], self.traffic)

    def close(self) -> None:
        """Do nothing: there is nothing to let go of."""


def _itself(item: Item) -> Item:
    return item
