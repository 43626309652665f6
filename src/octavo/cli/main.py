"""The `octavo` command: finds the verb, runs it, and ends every error in one sentence.

Only the chosen verb's module is imported, so that `octavo --help` stays quick.
"""

from __future__ import annotations

import errno
import importlib
import os
import sys
import traceback
from collections.abc import Sequence

from octavo import __version__
from octavo.cli.options import Parser
from octavo.config import ConfigError

VERBS = {
    "serve": "serve a model over the OpenAI API",
    "chat": "talk with a model in the terminal",
    "run": "answer one prompt",
    "pull": "download a model or data set from the catalogue",
    "quantize": "write a GGUF model with its matrices in Q8_0, Q4_0 or Q4_K_M",
    "doctor": "show what this machine offers and what Octavo makes of it",
    "bench": "measure a server (any OpenAI server) or the engine",
    "simulate": "run the real scheduler on a simulated machine, or replay a recorded run",
    "plan": "find the fewest machines that serve a trace within limits",
}

EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED = 1, 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run `octavo ARGV`; returns the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(usage())
        return 0 if arguments else EXIT_USAGE
    if arguments[0] in ("-V", "--version", "version"):
        print(f"octavo {__version__}")
        return 0
    if arguments[0] not in VERBS:
        return _fail(f"there is no `octavo {arguments[0]}`; the verbs are {', '.join(VERBS)}.", EXIT_USAGE)
    try:
        return _run_verb(arguments[0], arguments[1:])
    except ConfigError as error:
        return _fail(str(error), EXIT_USAGE)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader (`| head`) has gone. Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    except Exception as error:
        if _debug(arguments):
            traceback.print_exc()
        return _fail(_sentence(error), EXIT_FAILED)


def usage() -> str:
    """What `octavo --help` prints."""
    lines = [f"  {verb:<9}{summary}" for verb, summary in VERBS.items()]
    return "\n".join(
        ["usage: octavo VERB [...]", "", *lines, "", "`octavo VERB --help` shows a verb's flags; `octavo --version`."]
    )


def _run_verb(verb: str, arguments: list[str]) -> int:
    module = importlib.import_module(f"octavo.cli.{verb}")
    parser = Parser(prog=f"octavo {verb}", description=VERBS[verb], allow_abbrev=False)
    module.add_arguments(parser)
    status: int = module.run(parser.parse_args(arguments))
    return status


def _sentence(error: Exception) -> str:
    """One line for a user. ValueError, OSError and RuntimeError are raised for users and speak for themselves."""
    text = " ".join(str(error).split())
    if isinstance(error, OSError) and error.strerror:  # without its "[Errno 28]"
        about = f"{error.filename}: " if error.filename else ""
        disk_full = error.errno == errno.ENOSPC and not error.filename
        text = f"{about}{error.strerror}{', so not all of the output could be written' if disk_full else ''}."
    if isinstance(error, (ValueError, OSError, RuntimeError)) and text:
        return text
    kind = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return f"internal error: {kind}; run again with `--log-level debug` for the traceback."


def _debug(arguments: Sequence[str]) -> bool:
    joined = " ".join(arguments).replace("=", " ")
    return "--log-level debug" in joined or os.environ.get("OCTAVO_LOG_LEVEL") == "debug"


def _fail(message: str, status: int) -> int:
    print(f"octavo: {message}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
