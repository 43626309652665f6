"""GET /health, /ping, /livez, /metrics, /version and /."""

from __future__ import annotations

import octavo
from octavo.server.exchange import Exchange
from octavo.server.front import Front
from octavo.server.prometheus import CONTENT_TYPE
from octavo.server.supervisor import State


async def health(front: Front, exchange: Exchange) -> None:
    """Readiness: 200 only while requests are served; the body says why not."""
    state = front.state
    await exchange.respond_json({"status": state.value}, 200 if state is State.READY else 503)


async def live(front: Front, exchange: Exchange) -> None:
    """Liveness: this process answers."""
    await exchange.respond_json({"status": "alive"})


async def metrics(front: Front, exchange: Exchange) -> None:
    await exchange.respond(200, front.metrics.render(), CONTENT_TYPE)


async def version(front: Front, exchange: Exchange) -> None:
    await exchange.respond_json({"version": octavo.__version__})


async def root(front: Front, exchange: Exchange) -> None:
    """For whoever opens the address in a browser."""
    about = "Octavo serves a language model over the OpenAI API, which is below /v1 (a client's base URL ends in /v1)."
    await exchange.respond_json({"message": about, "model": front.model_names[0], "health": "/health"})
