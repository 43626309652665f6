"""GET /v1/models and /v1/models/NAME."""

from __future__ import annotations

from octavo.server.exchange import Exchange
from octavo.server.front import Front
from octavo.server.protocol import ModelCard, ModelList


async def models(front: Front, exchange: Exchange) -> None:
    await exchange.respond_json(ModelList([_card(front, name) for name in front.model_names]))


async def model(front: Front, exchange: Exchange, name: str) -> None:
    await exchange.respond_json(_card(front, front.check_model(name)))


def _card(front: Front, name: str) -> ModelCard:
    ready = front.supervisor.ready
    return ModelCard(name, front.created, ready.max_model_len if ready is not None else None, front.model_names[0])
