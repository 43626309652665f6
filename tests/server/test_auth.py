"""API keys: deny by default (CASES AP-06), compared and kept as secrets are (SE-04)."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.server.harness import JSON, Served

from octavo.config import ConfigError, ServerConfig
from octavo.server.app import OPEN_PATHS, ROUTES
from octavo.server.auth import Keys, load_keys
from octavo.server.errors import ApiError

FIRST, SECOND, UMLAUT = "sk-first-key-0123456789", "sk-second", "schlüssel-🔑"
SPELLINGS = [
    "//v1/models",
    "/v1/models/",
    "/v1%2fmodels",
    "/v1/../v1/models",
    "/V1/MODELS",
    "/v1/models/x",
    "/",
    "/nope",
]


@pytest.fixture(scope="module")
def guarded(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    file = tmp_path_factory.mktemp("keys") / "keys"
    file.write_text(f"# the second tenant\n{SECOND}\n\n{UMLAUT}\n", encoding="utf-8")
    settings = {"api_key": [FIRST], "api_key_file": str(file), "root_path": "/octavo"}
    with Served(model, "--step-ms", "1", server=settings) as one:
        yield one


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.mark.parametrize("prefix", ["", "/octavo"])
@pytest.mark.parametrize("path", [*sorted(ROUTES), *SPELLINGS])
def test_ap06_nothing_but_liveness_answers_without_a_key(guarded: Served, path: str, prefix: str) -> None:
    for method in ("GET", "POST", "HEAD", "OPTIONS"):
        status = guarded.request(method, prefix + path, b"{}", JSON).status
        if path in OPEN_PATHS:
            assert status in (200, 405)
        else:
            assert status == 401, (method, path)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        bearer("wrong"),
        bearer(""),
        bearer(FIRST + "x"),
        bearer(FIRST[:-1]),
        bearer(FIRST.upper()),
        {"Authorization": "Bearer"},
        {"Authorization": FIRST},
        {"Authorization": f"Basic {FIRST}"},
        {"Authorization": b"Bearer \xff\xfe\xe9".decode("latin-1")},
        {"X-Api-Key": FIRST},
    ],
)
def test_ap06_wrong_keys(guarded: Served, headers: dict[str, str]) -> None:
    answer = guarded.get("/v1/models", **headers)
    assert answer.status == 401
    assert answer.headers["www-authenticate"].startswith("Bearer")
    assert answer.error["code"] == "invalid_api_key"


def test_ap06_a_key_in_the_query_opens_nothing(guarded: Served) -> None:
    assert guarded.get(f"/v1/models?api_key={FIRST}&key={FIRST}").status == 401


@pytest.mark.parametrize("key", [FIRST, SECOND, UMLAUT.encode().decode("latin-1")])
def test_every_key_opens(guarded: Served, key: str) -> None:
    assert guarded.get("/v1/models", **bearer(key)).status == 200
    assert guarded.get("/v1/models", authorization=f"bearer  {key}").status == 200
    assert guarded.get("/octavo/v1/models", **bearer(key)).status == 200


def test_pc07_keys_do_not_share_cached_pages(guarded: Served) -> None:
    def cached(key: str) -> int:
        body = {"prompt": "a secret of mine", "max_tokens": 1}
        usage = guarded.post("/v1/completions", body, bearer(key)).json["usage"]
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    assert [cached(FIRST), cached(SECOND), cached(FIRST)] == [0, 0, 15]


def test_se04_keys_are_never_shown(guarded: Served) -> None:
    guarded.get("/v1/models", **bearer(FIRST))
    guarded.get("/v1/models", **bearer("wrong-but-secret"))
    command_lines = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    engine = Path(f"/proc/{guarded.engine_pid}/cmdline").read_text()
    metrics = guarded.get("/metrics", **bearer(FIRST)).body.decode()
    for secret in (SECOND, UMLAUT, "wrong-but-secret"):
        for place in (guarded.log, metrics, command_lines, engine):
            assert secret not in place
    assert FIRST not in guarded.log + metrics + engine  # the test itself passes it by argument


def test_one_key_is_no_tenant() -> None:
    assert Keys((FIRST,)).tenant(f"Bearer {FIRST}".encode()) == ""
    assert Keys(()).tenant(None) == ""


def test_tenants_differ_and_tell_nothing() -> None:
    keys = Keys((FIRST, SECOND))
    tenants = {keys.tenant(f"Bearer {key}".encode()) for key in (FIRST, SECOND)}
    assert len(tenants) == 2
    assert all(len(tenant) == 16 for tenant in tenants)
    with pytest.raises(ApiError):
        keys.tenant(b"Bearer " + FIRST.encode()[:-1])


@pytest.mark.parametrize("content", [None, b"", b"# nothing\n\n", b"\xff\xfe"])
def test_a_key_file_that_gives_no_key_is_an_error_and_not_an_open_door(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "keys"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match="--api-key-file"):
        load_keys(ServerConfig(api_key_file=str(file)))


@pytest.mark.parametrize("key", [" ", "two ", "x" * 5000])
def test_keys_that_no_header_can_carry(key: str) -> None:
    with pytest.raises(ConfigError):
        load_keys(ServerConfig(api_key=(key,)))
