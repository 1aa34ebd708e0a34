"""serve: a model that answers over HTTP."""

from __future__ import annotations

from typing import Annotated

import typer

from distgp.cli import options as o
from distgp.cli.terminal import plain_errors, tell


def serve(
    model: o.ModelFile,
    host: Annotated[
        str, typer.Option(help="address to listen at; 0.0.0.0 for other machines too")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65_535, help="port to listen at; 0 for a free one")
    ] = 8000,
    max_rows: Annotated[int, typer.Option(min=1, help="rows of one request, at most")] = 100_000,
    max_bytes: Annotated[int, typer.Option(min=1, help="bytes of one request, at most")] = 2**26,
    device: Annotated[
        str | None, typer.Option(help="cpu or cuda; default: where the model was fitted")
    ] = None,
    quiet: o.Quiet = False,
) -> None:
    """Answer predictions over HTTP: POST /predict with JSON or Arrow, GET /info, GET /health."""
    with plain_errors():
        try:
            from distgp import serve as server
        except ImportError as error:
            raise ValueError(str(error)) from error
        server.serve(
            model,
            host,
            port,
            device,
            lambda url: tell(f"serving {model.name} at {url}, until Ctrl-C", not quiet),
            max_rows=max_rows,
            max_bytes=max_bytes,
        )
