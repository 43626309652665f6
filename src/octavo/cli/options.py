"""Flags, OCTAVO_* variables and the config file, all made from config.py's settings.

A setting's value comes from the first of: its flag, its variable, the file that `--config` names, its default.
Everything wrong raises ConfigError: one sentence that says where the value came from, what it is and what it must be.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from octavo.cli.unknown_flags import advice, nearest
from octavo.config import ConfigError, EngineConfig, ServerConfig, Setting, parse_size, settings

CONFIG_CLASSES: tuple[type[Any], ...] = (EngineConfig, ServerConfig)
CONFIG_VARIABLE = "OCTAVO_CONFIG"
CACHE_VARIABLE = "OCTAVO_CACHE"

# Kubernetes sets such variables in every pod beside a service that is called "octavo".
_SERVICE_LINK = re.compile(r"OCTAVO_(SERVICE_(HOST|PORT).*|PORT_\d+_(TCP|UDP).*)")
_SWITCH_WORDS = {
    "true": True,
    "1": True,
    "yes": True,
    "on": True,
    "false": False,
    "0": False,
    "no": False,
    "off": False,
}

Config = TypeVar("Config")


class Parser(argparse.ArgumentParser):
    """An argparse parser whose errors are ConfigError instead of usage and exit."""

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        parsed, unknown = self.parse_known_args(args, namespace)
        if unknown:
            parser = self._chosen(parsed)
            flags = [flag for action in parser._actions for flag in action.option_strings]
            raise ConfigError(f"{unknown[0]} is no flag or argument of `{parser.prog}`{advice(unknown[0], flags)}")
        return parsed

    def _chosen(self, parsed: argparse.Namespace) -> argparse.ArgumentParser:
        """The parser whose flags were meant: that of the subject (`octavo bench serve`), if there are subjects."""
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                found: argparse.ArgumentParser = action.choices.get(getattr(parsed, action.dest), self)
                return found
        return self

    def error(self, message: str) -> NoReturn:
        """argparse's own words, brought into the form that all other settings' errors have."""
        flag, problem = "", message
        if (match := re.fullmatch(r"argument ([^ /]+)\S*: (.*)", message, re.DOTALL)) is not None:
            flag, problem = match.groups()
        if problem.startswith("it is "):  # at_least
            raise ConfigError(f"{flag} {problem.removeprefix('it ').rstrip('.')}.")
        if (match := re.match(r"invalid choice: (.*?) \(choose from (.*)\)$", problem)) is not None:
            raise ConfigError(f"{flag} is {match[1]}; it must be one of {match[2].replace(chr(39), '')}.")
        if problem.startswith("expected "):
            raise ConfigError(f"{flag} needs a value; see `{self.prog} --help`.")
        text = f"{flag}: {problem}" if flag else problem
        raise ConfigError(f"{text[0].lower()}{text[1:].rstrip('.')}; see `{self.prog} --help`.")


def at_least(low: float, kind: type[int] | type[float] = int, most: float = math.inf) -> Callable[[str], Any]:
    """An argparse type for flags that are no settings: a number from `low` on, and up to `most` if that is given."""

    def convert(text: str) -> Any:
        try:
            number = kind(text)
        except ValueError:
            number = None
        if number is None or not low <= number <= most or number == math.inf:
            what, shown = ("an integer", "d") if kind is int else ("a number", "g")
            least = format(kind(low), shown)
            limits = f"of at least {least}" if most == math.inf else f"from {least} to {format(kind(most), shown)}"
            raise argparse.ArgumentTypeError(f"it is {text!r}; it must be {what} {limits}")
        return number

    return convert


def add_settings(parser: argparse.ArgumentParser, *classes: type[Any], only: Iterable[str] = ()) -> None:
    """Give the parser `--config` and a flag for each setting of the classes (or for the names in `only`).

    Flags keep their text; `Sources.build` turns it into values, so that all sources are checked by the same code.
    """
    if not any(action.dest == "config" for action in parser._actions):
        parser.add_argument("--config", metavar="FILE", help="YAML file with settings, such as `max-model-len: 4096`")
    for cls in classes:
        group = parser.add_argument_group(f"{cls.__name__.removesuffix('Config').lower()} settings")
        for setting in settings(cls):
            if not only or setting.name in only:
                _add_flag(group, setting)


def _add_flag(group: argparse._ArgumentGroup, setting: Setting) -> None:
    spellings = [setting.flag, *("--" + alias for alias in setting.knob.aliases)]
    text = describe(setting).replace("%", "%%")
    if setting.kind == "switch":
        group.add_argument(
            *spellings, dest=setting.name, action=argparse.BooleanOptionalAction, default=argparse.SUPPRESS, help=text
        )
        return
    metavar = "|".join(map(str, setting.knob.choices)) or _METAVARS[setting.kind]
    if setting.knob.unit == "bytes":
        metavar = "SIZE"
    group.add_argument(
        *spellings,
        dest=setting.name,
        action="append" if setting.kind == "list" else "store",
        default=argparse.SUPPRESS,
        metavar=metavar,
        help=text,
    )


_METAVARS = {"integer": "N", "number": "X", "text": "TEXT", "list": "TEXT"}


def describe(setting: Setting) -> str:
    """Help, unit and default in one line."""
    again = "; may be given several times" if setting.kind == "list" else ""
    unit = f" {setting.knob.unit}" if setting.knob.unit not in ("", "bytes") else ""
    return f"{setting.knob.help}{again} (default: {show_default(setting)}{unit if setting.default is not None else ''})"


def show_default(setting: Setting) -> str:
    """The default as a user would write it."""
    default = setting.default
    if default is None:
        return setting.knob.unset
    if setting.kind == "switch":
        return "true" if default else "false"
    if setting.kind == "list":
        return ", ".join(default) or "none"
    if setting.knob.unit == "bytes":
        return show_size(default)
    return f"{default:g}" if setting.kind == "number" else str(default) or "empty"


def show_size(size: int) -> str:
    """8388608 -> 8MiB."""
    for unit, shift in (("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size >= 1 << shift and size % (1 << shift) == 0:
            return f"{size >> shift}{unit}"
    return str(size)


def parse_text(setting: Setting, text: str, shown: str) -> Any:
    """The value that `text` (from a flag or a variable) means. Raises ConfigError that begins with `shown`."""
    value: Any = text
    if setting.kind == "list":
        value = tuple(part for part in (piece.strip() for piece in re.split(r"[,\n]", text)) if part)
    elif setting.kind == "switch":
        value = _SWITCH_WORDS.get(text.strip().lower(), text)
    elif setting.kind == "integer":
        size = parse_size(text) if setting.knob.unit == "bytes" else _integer(text)
        value = text if size is None else size
    elif setting.kind == "number":
        try:
            value = float(text)
        except ValueError:
            value = text
    setting.check(value, shown)
    return value


def _integer(text: str) -> int | None:
    return int(text) if re.fullmatch(r"\s*[+-]?\d{1,18}\s*", text) else None


def parse_file_value(setting: Setting, value: Any, shown: str) -> Any:
    """The value of a setting in the file: a text, which is read as it would be in a variable, or a list of texts."""
    if setting.optional and value in ("", "null", "~"):
        return None
    if setting.kind == "list":
        value = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value
    elif isinstance(value, str):
        return parse_text(setting, value, shown)
    setting.check(value, shown)
    return value


@dataclass(frozen=True, slots=True)
class Sources:
    """Where settings come from, outermost first."""

    flags: Mapping[str, Any]
    environ: Mapping[str, str]
    path: str | None
    file: Mapping[str, Any]

    @classmethod
    def read(cls, namespace: argparse.Namespace, environ: Mapping[str, str]) -> Sources:
        """Read `--config` (or OCTAVO_CONFIG). Raises ConfigError for unknown variables, keys and unreadable files."""
        _refuse_unknown_variables(environ)
        path = getattr(namespace, "config", None) or environ.get(CONFIG_VARIABLE)
        return cls(vars(namespace), environ, path, read_file(path) if path else {})

    def build(self, cls: type[Config]) -> Config:
        """A config of class `cls` from all sources."""
        values = {}
        for setting in settings(cls):
            if setting.name in self.flags:
                values[setting.name] = self._from_flag(setting)
            elif (text := self.environ.get(setting.variable)) is not None and not _is_service_link(setting, text):
                values[setting.name] = parse_text(setting, text, f"environment variable {setting.variable}")
            elif setting.name in self.file:
                shown = f"{setting.key} in {self.path}"
                values[setting.name] = parse_file_value(setting, self.file[setting.name], shown)
        return cls(**values)

    def _from_flag(self, setting: Setting) -> Any:
        given = self.flags[setting.name]
        if setting.kind == "list":
            setting.check(tuple(given), setting.flag)
            return tuple(given)
        return parse_text(setting, given, setting.flag) if isinstance(given, str) else given


def _is_service_link(setting: Setting, text: str) -> bool:
    return setting.name == "port" and text.startswith(("tcp://", "udp://"))


def _refuse_unknown_variables(environ: Mapping[str, str]) -> None:
    known = {setting.variable for cls in CONFIG_CLASSES for setting in settings(cls)} | {
        CONFIG_VARIABLE,
        CACHE_VARIABLE,
    }
    for name in sorted(environ):
        if name.startswith("OCTAVO_") and name not in known and not _SERVICE_LINK.fullmatch(name):
            raise ConfigError(f"environment variable {name} is no setting of Octavo{nearest(name, known)}")


_MAX_FILE_CHARACTERS = 1 << 20


def read_file(path: str) -> dict[str, Any]:
    """The settings in a YAML file by field name, each value a text, a list or a mapping. Raises ConfigError."""
    import yaml

    try:
        # BaseLoader leaves every scalar a text: an API key of 0123 must not become the number 83.
        with Path(path).open(encoding="utf-8") as file:
            text = file.read(_MAX_FILE_CHARACTERS + 1)
        if len(text) > _MAX_FILE_CHARACTERS:
            raise ConfigError(f"the config file {path} is longer than {_MAX_FILE_CHARACTERS} characters.")
        content = yaml.load(text, Loader=yaml.BaseLoader)
    except OSError as error:
        raise ConfigError(f"the config file {path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"the config file {path} is not UTF-8: {error.reason} at byte {error.start}.") from error
    except yaml.MarkedYAMLError as error:
        line = f" in line {error.problem_mark.line + 1}" if error.problem_mark is not None else ""
        raise ConfigError(
            f"the config file {path} is not valid YAML{line}: {error.problem or error.context}."
        ) from error
    except yaml.YAMLError as error:
        raise ConfigError(f"the config file {path} is not valid YAML: {str(error).splitlines()[0]}.") from error
    if content in (None, ""):
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"the config file {path} holds a {type(content).__name__}; it must hold `key: value` lines.")
    known = {setting.key for cls in CONFIG_CLASSES for setting in settings(cls)}
    found: dict[str, Any] = {}
    for key, value in content.items():
        spelled = str(key).replace("_", "-")
        if spelled not in known:
            raise ConfigError(f"{key} in {path} is no setting of Octavo{nearest(spelled, known)}")
        found[spelled.replace("-", "_")] = value
    return found
