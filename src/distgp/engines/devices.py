"""The engine for several GPUs of one machine: one worker per device, in this process."""

from __future__ import annotations

import contextlib
import io
import pickle
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from distgp.engines.base import (
    Each,
    Engine,
    Function,
    Item,
    LocalPlacement,
    Placement,
    Result,
    Traffic,
    guarded,
    itself,
    released,
)


def moved(value: object, device: torch.device) -> Any:
    """Copy a value of any kind by pickling it in memory, with all tensors in it moved to a device."""
    if isinstance(value, Tensor):
        return value.to(device)
    held: list[Tensor] = []
    buffer = io.BytesIO()

    class Pickler(pickle.Pickler):
        def persistent_id(self, obj: object) -> int | None:
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
class DevicesPlacement(Placement[Item]):
    """Items on the devices of one machine, with the device of each; results are brought to `home`."""

    items: tuple[Item, ...]
    devices: tuple[torch.device, ...]
    home: torch.device
    traffic: Traffic

    def __len__(self) -> int:
        return len(self.items)

    def map(
        self, function: Callable[..., Result], *arguments: Any, each: Each = None
    ) -> list[Result]:
        """Call the function on all items at the same time, and bring the results home."""
        made = self._on_all(function, arguments, each)
        found = [released(result, function, self.may_leave) for result in made]
        for result in found:
            self.traffic.receive(result, function)
        return [moved(result, self.home) for result in found]

    def on_first(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Call the function on the first item alone."""
        return self._with(self.items[:1], self.devices[:1]).map(function, *arguments)[0]

    def derive(
        self, function: Function, *arguments: Any, each: Each = None
    ) -> DevicesPlacement[Any]:
        """Keep what the function makes of each item where the item is; None is left out."""
        made = zip(self._on_all(function, arguments, each), self.devices, strict=True)
        kept = [(item, device) for item, device in made if item is not None]
        return self._with(tuple(item for item, _ in kept), tuple(device for _, device in kept))

    def gather(self) -> LocalPlacement[Item]:
        """Bring a copy of every item to the first device."""
        return LocalPlacement(tuple(self.map(itself)))

    def _with(
        self, items: tuple[Any, ...], devices: tuple[torch.device, ...]
    ) -> DevicesPlacement[Any]:
        return guarded(DevicesPlacement(items, devices, self.home, self.traffic), self.may_leave)

    def _on_all(self, function: Function, arguments: Sequence[Any], each: Each) -> list[Any]:
        """Call the function where the items are, one thread per device."""
        own = [()] * len(self) if each is None else [(value,) for value in each]
        calls = list(zip(self.items, self.devices, own, strict=True))
        self.traffic.call(function, arguments, each, len(self))
        gradients = torch.is_grad_enabled()

        def call(item: Item, device: torch.device, last: tuple[Any, ...]) -> Any:
            here = moved((*arguments, *last), device)
            on_device = torch.cuda.device(device) if device.type == "cuda" else None
            with torch.set_grad_enabled(gradients), on_device or contextlib.nullcontext():
                return function(item, *here)

        if len(calls) < 2:
            return [call(*one) for one in calls]
        with ThreadPoolExecutor(len(calls)) as pool:
            return list(pool.map(lambda one: call(*one), calls))


class DevicesEngine(Engine):
    """One process with one worker per device, such as all GPUs of a machine.

    Parameters
    ----------
    devices : sequence of str, optional
        The devices, such as ``["cuda:0", "cuda:1"]``; all visible GPUs by default.
    may_leave : collection of str, optional
        The kinds of results, of `distgp.engines.KINDS`, that may leave a worker; all by default.
    """

    name: ClassVar[str] = "devices"

    def __init__(
        self,
        devices: Sequence[str | torch.device] | None = None,
        may_leave: Collection[str] | None = None,
    ) -> None:
        super().__init__(may_leave)
        if devices is None:
            devices = [f"cuda:{i}" for i in range(torch.cuda.device_count())]
        self.devices = tuple(torch.device(device) for device in devices)
        if not self.devices:
            raise ValueError(
                "no GPU is visible: give the devices, such as DevicesEngine(['cuda:0', 'cuda:1']), or "
                "leave engine at 'local'"
            )

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as a new engine: nothing lives in the object itself."""
        return DevicesEngine, (self.devices, self.may_leave)

    @property
    def workers(self) -> int:
        """The number of devices."""
        return len(self.devices)

    def scatter(
        self, sources: Sequence[Callable[[], Item]], names: Sequence[str]
    ) -> DevicesPlacement[Item]:
        """Make the items, each on its device; the first devices where there are fewer items."""
        del names
        for source in sources:
            self.traffic.send(source)
        devices = tuple(self.devices[i % len(self.devices)] for i in range(len(sources)))
        pairs = zip(sources, devices, strict=True)
        items = tuple(moved(source(), device) for source, device in pairs)
        placement = DevicesPlacement(items, devices, self.devices[0], self.traffic)
        return guarded(placement, self.may_leave)

    def close(self) -> None:
        """Do nothing: there is nothing to let go of."""
