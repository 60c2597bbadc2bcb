"""The command line: ``mstar-resident generate | bench | check``."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from mstar_resident.cli.exits import ERROR, USAGE, exit_code

COMMANDS = {
    "generate": "stream text from a real model with its decode rows resident",
    "bench": "time plans, whole decode steps and kernels",
    "check": "run scenarios through the engine under the row check",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 0 good, 1 mismatch or missed bound, 2 usage, 3 anything else."""
    parser = argparse.ArgumentParser(prog="mstar-resident", description="Resident decode planner for LLM serving.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="{generate,bench,check}")
    arguments = list(sys.argv[1:] if argv is None else argv)
    named = next((argument for argument in arguments if not argument.startswith("-")), None)
    for name, text in COMMANDS.items():
        command = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        if name == named:  # a command's module is imported when it is asked for: some need transformers
            module = importlib.import_module(f"mstar_resident.cli.{name}")
            module.add_arguments(command)
            command.set_defaults(run=module.run)
    try:
        parsed = parser.parse_args(arguments)
        code: int = parsed.run(parsed)
    except SystemExit as exit_:  # argparse has said what is wrong
        return exit_.code if isinstance(exit_.code, int) else USAGE
    except KeyboardInterrupt:
        print("mstar-resident: interrupted", file=sys.stderr)
        return ERROR
    except BrokenPipeError:
        sys.stderr.close()  # whoever read the output has gone
        return ERROR
    except Exception as error:
        code = exit_code(error)
        name = f"{type(error).__name__}: " if code == ERROR else ""
        print(f"mstar-resident: {name}{error}", file=sys.stderr)
    return code
