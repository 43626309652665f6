"""Flags, variables, file and defaults: which wins, and what is said of a wrong one."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from octavo.cli.main import main
from octavo.cli.options import CONFIG_CLASSES, Parser, Sources, add_settings, show_size
from octavo.cli.unknown_flags import ABSENT, RENAMED
from octavo.config import ConfigError, EngineConfig, ServerConfig, Setting, parse_size, settings

EVERY_SETTING = [setting for cls in CONFIG_CLASSES for setting in settings(cls)]


def parse(*arguments: str, **environ: str) -> tuple[EngineConfig, ServerConfig]:
    parser = Parser(prog="octavo serve", allow_abbrev=False)
    add_settings(parser, EngineConfig, ServerConfig)
    sources = Sources.read(parser.parse_args(arguments), environ)
    return sources.build(EngineConfig), sources.build(ServerConfig)


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    path = tmp_path / "octavo.yaml"
    path.write_text(
        "max-num-seqs: 3\nport: 3333\napi_key: [one, two]\nkv-cache-memory-bytes: 1GiB\nmodel: null-model\n"
    )
    return path


def test_defaults_are_the_dataclasses() -> None:
    assert parse() == (EngineConfig(), ServerConfig())


@pytest.mark.parametrize("prefix", ["9x", "a b", "a-b", "ä", "x\n"])
def test_a_metrics_prefix_that_no_scraper_would_read_is_refused(prefix: str) -> None:
    with pytest.raises(ConfigError, match=r"metrics_prefix is .*; it must be letters, digits, `_` and `:`"):
        ServerConfig(metrics_prefix=prefix)


@pytest.mark.parametrize("prefix", ["", "octavo_", "vllm:"])
def test_metrics_prefixes(prefix: str) -> None:
    assert ServerConfig(metrics_prefix=prefix).metrics_prefix == prefix


def test_configs_take_sizes_as_texts() -> None:
    assert EngineConfig(kv_cache_memory_bytes="64MiB").kv_cache_memory_bytes == 64 << 20  # type: ignore[arg-type]
    assert ServerConfig(max_body_bytes="1MB").max_body_bytes == 1_000_000  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="kv_cache_memory_bytes is 'much'; it must be a size in bytes"):
        EngineConfig(kv_cache_memory_bytes="much")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="max_body_bytes is 1; it must be"):
        ServerConfig(max_body_bytes="1")  # type: ignore[arg-type]


def test_flag_beats_variable_beats_file_beats_default(config_file: Path) -> None:
    file = ("--config", str(config_file))
    assert parse(*file)[0].max_num_seqs == 3
    assert parse(*file, OCTAVO_MAX_NUM_SEQS="5")[0].max_num_seqs == 5
    assert parse(*file, "--max-num-seqs", "7", OCTAVO_MAX_NUM_SEQS="5")[0].max_num_seqs == 7
    assert parse(*file)[0].max_num_batched_tokens == EngineConfig().max_num_batched_tokens
    assert parse(OCTAVO_CONFIG=str(config_file))[1].port == 3333


def test_file_values(config_file: Path) -> None:
    engine, server = parse("--config", str(config_file))
    assert engine.kv_cache_memory_bytes == 1 << 30
    assert engine.model == "null-model"
    assert server.api_key == ("one", "two")


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("api-key: 0123", "api_key", ("0123",)),
        ("api-key: [0123, 1e3, yes]", "api_key", ("0123", "1e3", "yes")),
        ("api-key: a,b", "api_key", ("a,b",)),
        ("chat-template:", "chat_template", None),
        ("chat-template: null", "chat_template", None),
        ("strict-max-tokens: yes", "strict_max_tokens", True),
        ("shutdown-timeout: 1.5", "shutdown_timeout", 1.5),
        ("max-body-bytes: 1MiB", "max_body_bytes", 1 << 20),
        ("# nothing", "port", 8000),
    ],
)
def test_values_in_the_file_are_texts(tmp_path: Path, text: str, name: str, value: object) -> None:
    path = tmp_path / "octavo.yaml"
    path.write_text(text)
    assert getattr(parse("--config", str(path))[1], name) == value


def test_lists_repeat_as_flags_and_separate_by_commas_in_variables() -> None:
    assert parse("--api-key", "a,b", "--api-key", "c")[1].api_key == ("a,b", "c")
    assert parse(OCTAVO_API_KEY="a, b\nc,")[1].api_key == ("a", "b", "c")


def test_switches() -> None:
    assert parse("--no-prefix-caching")[0].prefix_caching is False
    assert parse("--no-enable-prefix-caching")[0].prefix_caching is False
    assert parse(OCTAVO_PREFIX_CACHING="off")[0].prefix_caching is False
    assert parse("--prefix-caching", OCTAVO_PREFIX_CACHING="off")[0].prefix_caching is True


def test_aliases_of_other_servers() -> None:
    assert parse("--block-size", "16")[0].page_size == 16


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4096", 4096),
        ("4096B", 4096),
        ("4GiB", 4 << 30),
        ("4G", 4 << 30),
        ("4gib", 4 << 30),
        ("4GB", 4 * 10**9),
        ("1.5GiB", 3 << 29),
        ("512 MiB", 512 << 20),
        ("64k", 64 << 10),
        ("1.5", None),
        ("-1", None),
        ("4QiB", None),
        ("4iB", None),
        ("", None),
    ],
)
def test_sizes(text: str, size: int | None) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("size", [0, 1, 1023, 1024, 8 << 20, (8 << 20) + 1, 3 << 40])
def test_shown_sizes_read_back(size: int) -> None:
    assert parse_size(show_size(size)) == size


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--port", "99999"), ("--port", "99999", "from 0 to 65535")),
        (("--port", "http"), ("--port", "'http'", "an integer")),
        (("--port", "1.5"), ("--port", "'1.5'")),
        (("--threads", "0"), ("--threads", "0", "from 1")),
        (("--threads", "-1"), ("--threads", "-1", "from 1")),
        (("--page-size", "7"), ("--page-size", "7", "4, 8, 16, 32")),
        (("--kv-cache-dtype", "f64"), ("--kv-cache-dtype", "'f64'", "auto, f32, bf16")),
        (("--kv-cache-memory-bytes", "4QiB"), ("--kv-cache-memory-bytes", "'4QiB'", "4GiB")),
        (("--shutdown-timeout", "nan"), ("--shutdown-timeout", "nan")),
        (("--target-itl-ms", "-1"), ("--target-itl-ms", "-1", "at least 0")),
        (("--max-model-length", "5"), ("--max-model-length", "did you mean --max-model-len")),
        (("--max-model", "5"), ("--max-model",)),
        (("--port",), ("--port needs a value; see",)),
        (("--config", "/does/not/exist.yaml"), ("/does/not/exist.yaml", "cannot be read")),
    ],
)
def test_a_wrong_flag_is_named_with_value_and_limit(arguments: tuple[str, ...], says: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(*arguments)
    message = str(caught.value)
    assert "\n" not in message
    assert [part for part in says if part not in message] == []


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("OCTAVO_PORT", "99999", ("environment variable OCTAVO_PORT", "99999", "from 0 to 65535")),
        ("OCTAVO_PREFIX_CACHING", "maybe", ("environment variable OCTAVO_PREFIX_CACHING", "'maybe'", "true or false")),
        ("OCTAVO_PROT", "1", ("environment variable OCTAVO_PROT", "did you mean OCTAVO_PORT")),
    ],
)
def test_a_wrong_variable_is_named(name: str, value: str, says: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(**{name: value})
    assert [part for part in says if part not in str(caught.value)] == []


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("port: 99999", ("port in", "octavo.yaml", "99999", "from 0 to 65535")),
        ("port: true", ("port in", "'true'")),
        ("port: [1]", ("port in", "['1']")),
        ("prefix-caching: 3", ("prefix-caching in", "true or false")),
        ("api-key: {a: b}", ("api-key in",)),
        ("model: [a]", ("model in", "['a']")),
        ("max-model-length: 1", ("max-model-length in", "did you mean max-model-len")),
        ("- port", ("list", "key: value")),
        ("port: [", ("not valid YAML",)),
    ],
)
def test_a_wrong_line_in_the_file_is_named(tmp_path: Path, text: str, says: tuple[str, ...]) -> None:
    path = tmp_path / "octavo.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        parse("--config", str(path))
    message = str(caught.value)
    assert "\n" not in message
    assert [part for part in says if part not in message] == []


def test_secrets_are_not_repeated_in_errors() -> None:
    with pytest.raises(ConfigError) as caught:
        parse("--api-key", "")
    assert "api-key" in str(caught.value)
    with pytest.raises(ConfigError) as caught:
        ServerConfig(api_key=("hunter2", ""))
    assert "hunter2" not in str(caught.value)


def test_kubernetes_service_links_are_not_settings() -> None:
    links = {
        "OCTAVO_PORT": "tcp://10.0.0.1:8000",
        "OCTAVO_SERVICE_HOST": "10.0.0.1",
        "OCTAVO_PORT_8000_TCP_ADDR": "10.0.0.1",
    }
    assert parse(**links)[1].port == ServerConfig().port


@pytest.mark.parametrize("setting", EVERY_SETTING, ids=lambda setting: setting.name)
def test_every_default_passes_its_own_limits_and_every_setting_has_help(setting: Setting) -> None:
    setting.check(setting.default)
    assert setting.knob.help
    assert not setting.optional or setting.knob.unset


def test_the_two_classes_share_no_name() -> None:
    names = [setting.name for setting in EVERY_SETTING]
    assert len(names) == len(set(names))


def test_configs_built_in_code_are_checked_too() -> None:
    with pytest.raises(ConfigError, match="page_size is 5; it must be one of 4, 8, 16, 32"):
        EngineConfig(page_size=5)


def test_a_parser_can_take_some_settings_only() -> None:
    parser = argparse.ArgumentParser()
    add_settings(parser, ServerConfig, only=("log_level",))
    flags = {flag for action in parser._actions for flag in action.option_strings}
    assert flags == {"-h", "--help", "--config", "--log-level"}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["serve", "-m", "x"], "-m is no flag or argument of `octavo serve`; use --model."),
        (
            ["serve", "--ctx-size=4096"],
            "--ctx-size=4096 is no flag or argument of `octavo serve`; use --max-model-len.",
        ),
        (["serve", "-np", "4"], "use --max-num-seqs."),
        (["serve", "-t", "4"], "use --threads."),
        (["serve", "--tensor-parallel-size", "2"], "Octavo has none: one engine process uses all the cores"),
        (["serve", "--gpu-memory-utilization", "0.9"], "Octavo has none: --kv-cache-memory-bytes sets"),
        (["serve", "--prot", "1"], "did you mean --port?"),
        (["serve", "--nothing-like-it"], "--nothing-like-it is no flag or argument of `octavo serve`."),
        (["run", "--api-key", "k", "hi"], "; --api-key is a flag of `octavo serve`."),
        (["run", "-p", "hi"], "the prompt is an argument of its own"),
        (["bench", "serve", "--base-ulr", "x"], "of `octavo bench serve`; did you mean --base-url?"),
        (["run", "--max-tokens", "0", "hi"], "--max-tokens is '0'; it must be an integer of at least 1."),
        (["bench", "serve", "--endpoint", "x"], "--endpoint is 'x'; it must be one of completions, chat."),
        (["bench", "serve", "--goodput", "x"], "--goodput: a goodput limit is 'x'"),
    ],
)
def test_unknown_and_wrong_flags_end_in_advice(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert says in said
    assert "?." not in said


def test_what_other_servers_flags_are_called_here_exists() -> None:
    known = {setting.flag for setting in EVERY_SETTING} | {"--" + a for s in EVERY_SETTING for a in s.knob.aliases}
    assert not known & (RENAMED.keys() | ABSENT.keys())
    assert set(RENAMED.values()) <= known | {"--max-tokens", "--temperature", "--seed", "--system"}


def test_a_broken_file_says_where(tmp_path: Path) -> None:
    path = tmp_path / "octavo.yaml"
    path.write_text("port: 1\nhost: [a\nmodel: b\n")
    with pytest.raises(ConfigError, match=r"octavo\.yaml is not valid YAML in line 3: "):
        parse("--config", str(path))
