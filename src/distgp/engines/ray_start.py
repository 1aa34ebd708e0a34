"""How a Ray cluster is started on this machine, and one elsewhere is looked at before it is joined."""

from __future__ import annotations

import importlib
import os
import socket
import subprocess
import sys
import warnings
from typing import Any

import ray

from distgp.engines.base import EngineWarning

CONNECT_LIMIT = 5.0
"""Seconds that a machine may take to accept a connection."""
ANSWER_LIMIT = 30.0
"""Seconds that a cluster may take to let a driver in."""
_TRY = (
    "import ray, sys; ray.init(address=sys.argv[1], log_to_driver=False, configure_logging=False)"
)


def start() -> None:
    """Start a cluster that only this machine's own processes can reach, and only with its token.

    Ray itself would listen on all interfaces on Linux. Its switch for that is the one by which it
    listens on the loopback interface alone on macOS and Windows.
    """
    _require_token()
    constants: Any = importlib.import_module("ray._private.ray_constants")
    before = getattr(constants, "ENABLE_RAY_CLUSTER", None)
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
        warnings.warn(
            f"this version of Ray ({ray.__version__}) listens on all network interfaces: use a firewall, "
            "or another version",
            EngineWarning,
            stacklevel=4,
        )


def check_reachable(address: str) -> None:
    """Refuse an address at which no cluster answers within seconds; Ray would try for minutes.

    Warns where the cluster lets in drivers without a token: whoever can reach it can run code there.

    Raises
    ------
    ConnectionError
        With what is wrong with the address.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if address != "auto":
        if not host or not port.isdigit():
            raise ConnectionError("expected 'auto', 'host:port' or 'ray://host:port'")
        try:
            socket.create_connection((host.strip("[]"), int(port)), CONNECT_LIMIT).close()
        except (OSError, OverflowError) as error:
            raise ConnectionError(f"nothing answers there ({error})") from error
    environment = os.environ | {"RAY_AUTH_MODE": "disabled"}
    try:
        tried = subprocess.run(
            [sys.executable, "-c", _TRY, address],
            env=environment,
            capture_output=True,
            text=True,
            timeout=ANSWER_LIMIT,
        )
    except subprocess.TimeoutExpired as error:
        raise ConnectionError(
            f"something answers there, but lets no driver in within {ANSWER_LIMIT:g} s: is it Ray, of "
            f"version {ray.__version__}?"
        ) from error
    if tried.returncode == 0:
        warnings.warn(
            f"the Ray cluster at {address} asks for no token: whoever can reach it can run code on it and "
            "read your rows. Start it with RAY_AUTH_MODE=token",
            EngineWarning,
            stacklevel=4,
        )
    elif "AuthenticationError" not in tried.stderr:
        raise ConnectionError((tried.stderr.strip().splitlines() or ["no reason given"])[-1])


def _require_token() -> None:
    """Have clusters that are started from here ask for a token, unless the user has said otherwise."""
    if "RAY_AUTH_MODE" in os.environ:
        return
    try:
        tokens: Any = importlib.import_module(
            "ray._private.authentication.authentication_token_setup"
        )
    except ImportError:
        warnings.warn(
            f"this version of Ray ({ray.__version__}) has no authentication: other users of this machine "
            "can reach the cluster. Install ray>=2.52",
            EngineWarning,
            stacklevel=5,
        )
        return
    os.environ["RAY_AUTH_MODE"] = "token"
    tokens.Config.initialize("")  # this process has read the variable already
