"""`python -m distgp`: the command line where its script is not installed."""

from __future__ import annotations

from distgp.cli import main

if __name__ == "__main__":
    main()
