"""``mstar-resident bench``."""

from __future__ import annotations

import argparse

from mstar_resident.cli.exits import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("what", help="what to time")


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return its exit code."""
    raise UsageError(f"bench: nothing to time is called {arguments.what}")
