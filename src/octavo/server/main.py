"""`serve`: the front process from its first line to its exit code.

The order is for speed and for clear failures: keys and port first (both can be wrong, both are cheap), then the engine
process, which loads weights while this one imports the HTTP stack and, as soon as the model's files are known, builds
the tokenizer.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from octavo.config import ConfigError, EngineConfig, ServerConfig
from octavo.server.auth import load_keys
from octavo.server.engine_process import WORKER, EngineProcess
from octavo.server.listen import ListenError, allow_many_connections, listen, url_of
from octavo.server.logs import configure_logging

if TYPE_CHECKING:
    from octavo.server.supervisor import Patience

log = logging.getLogger("octavo.server")


def serve(
    engine: EngineConfig,
    server: ServerConfig,
    *,
    worker: Sequence[str] = WORKER,
    patience: Patience | None = None,
) -> int:
    """Serve until a signal; returns the exit code.

    0: ended by SIGTERM, SIGINT or SIGHUP. 1: it could not start, or the engine could not be kept alive. 130: a second
    SIGINT ended it at once. worker: command of the engine process.
    """
    configure_logging(server.log_level)
    began_s = time.monotonic() - _age_of_process_s()
    try:
        keys = load_keys(server)
        if server.chat_template is not None:
            # Only now: most servers are started without, and what compiles templates takes a while to import.
            from octavo.text.chat import ChatTemplateError, check_template_file

            try:
                check_template_file(server.chat_template)
            except ChatTemplateError as error:
                raise ConfigError(f"--chat-template: {error}.") from None
        allow_many_connections()
        listener = listen(server.host, server.port)
    except (ConfigError, ListenError) as error:
        print(f"octavo: {error}", file=sys.stderr)
        return 1
    process = EngineProcess(worker, 1, engine)
    try:
        # The engine process would find this, too, but only after it has been announced that something listens.
        from octavo.formats.errors import ModelNotFoundError
        from octavo.formats.resolve import check_name

        try:
            check_name(engine.model)
        except ModelNotFoundError as error:
            print(f"octavo: {error}", file=sys.stderr)
            return 1
        log.info("listening on %s; loading %s", url_of(listener), engine.model)
        # Only now the event loop and the HTTP stack: importing them takes as long as much of the loading.
        from octavo.server.running import run
        from octavo.server.supervisor import Patience, Supervisor

        patience = patience or Patience(step_dead_s=server.step_timeout)
        supervisor = Supervisor(process, engine, worker, patience)
        return run(engine, server, keys, listener, supervisor, began_s)
    finally:
        process.kill()
        listener.close()


def _age_of_process_s() -> float:
    """Seconds since this process was started: the interpreter's own start counts too. 0 where /proc is missing."""
    try:
        # Field 22 of proc_pid_stat(5), counted after the command's closing parenthesis: start in ticks since boot.
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return 0.0
