"""What the routes work with: the parts of the front process, and the questions every route asks first."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from octavo import ipc
from octavo.config import ServerConfig
from octavo.server.admission import Admission
from octavo.server.auth import Keys
from octavo.server.errors import ApiError, unavailable
from octavo.server.journal import Journal
from octavo.server.metrics import Metrics
from octavo.server.supervisor import State, Supervisor
from octavo.server.text import TextService

_WHY_NOT = {
    State.STARTING: "The server is starting; the model is being loaded.",
    State.STUCK: "The engine does not answer.",
    State.RESTARTING: "The engine died and is being restarted.",
    State.DRAINING: "The server is shutting down.",
    State.FAILED: "The engine can't be restarted; the server is ending.",
}


@dataclass(slots=True)
class Front:
    """Attributes: model_names (the first is the one that answers carry), also_named (names that are answered to but not
    listed: the path that the model was started by), apply_model_defaults (the model's sampling defaults hold where a
    request says nothing)."""

    config: ServerConfig
    keys: Keys
    model_names: tuple[str, ...]
    also_named: tuple[str, ...]
    apply_model_defaults: bool
    supervisor: Supervisor
    journal: Journal
    admission: Admission
    metrics: Metrics
    text: TextService
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def state(self) -> State:
        """The truth for /health: ready only when both the engine and the tokenizer are."""
        state = self.supervisor.state
        return State.STARTING if state is State.READY and not self.text.loaded else state

    @property
    def max_model_len(self) -> int:
        return self.require_ready().max_model_len

    @property
    def vocab_size(self) -> int:
        """Ids that are safe to send: those that the tokenizer knows and the model has a row for."""
        return min(self.text.vocab_size, self.require_ready().vocab_size)

    @property
    def sampling_defaults(self) -> Mapping[str, float]:
        return self.require_ready().sampling_defaults if self.apply_model_defaults else {}

    @property
    def sampling_in_words(self) -> str:
        """For the log: what holds where a request says nothing; empty if that is the API's own defaults."""
        ready = self.supervisor.ready
        if ready is None or not ready.sampling_defaults or not self.apply_model_defaults:
            return ""
        values = ", ".join(f"{name} {value:g}" for name, value in ready.sampling_defaults.items())
        return f"{values}, from {ready.sampling_source} (--generation-config none: OpenAI's)"

    def require_ready(self) -> ipc.Ready:
        """What the engine said of itself. Raises ApiError 503 unless requests can be served now."""
        state, ready = self.state, self.supervisor.ready
        if state is not State.READY or ready is None:
            raise unavailable(_WHY_NOT.get(state, "The engine is not ready."), state.value)
        return ready

    def check_model(self, name: str | None) -> str:
        """The name to answer with. Raises ApiError 404 for a model that is not served."""
        if name is None or (name in self.also_named and name not in self.model_names):
            return self.model_names[0]
        if name not in self.model_names:
            raise ApiError(
                404,
                f"The model {name[:200]!r} is not served here; this server has {', '.join(self.model_names)}.",
                param="model",
                code="model_not_found",
            )
        return name
