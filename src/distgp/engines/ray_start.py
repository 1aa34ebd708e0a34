"""Start a Ray cluster on this machine, or look at one elsewhere before it is joined."""

from __future__ import annotations

import importlib
import os
import socket
import subprocess
import sys
from typing import Any

import ray

from distgp._util.checks import warn_user
from distgp.engines.base import EngineWarning

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


def start() -> None:
    """Start a cluster that only this machine's own processes can reach, and only with its token.

    Ray itself would listen on all interfaces on Linux. Its switch for that is the one by which it
    listens on the loopback interface alone on macOS and Windows.
    """
    _require_token()
    constants: Any = importlib.import_module("ray._private.ray_constants")
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
    """Refuse an address at which no cluster answers within seconds; Ray would try for minutes.

    Warn where the cluster lets in drivers without a token: whoever can reach it can run code there.
    """
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
