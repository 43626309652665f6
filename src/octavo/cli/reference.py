"""docs/configuration.md, made from the settings: `python -m octavo.cli.reference > docs/configuration.md`."""

from __future__ import annotations

from octavo.cli.options import show_default
from octavo.config import EngineConfig, ServerConfig, Setting, settings

_HEAD = """\
# Configuration

<!-- Made by `python -m octavo.cli.reference`; edit src/octavo/config.py instead. -->

Every setting can be given in four ways. The first that is present wins:

1. a flag: `octavo serve --max-model-len 4096`
2. an environment variable: `OCTAVO_MAX_MODEL_LEN=4096`
3. a line in the YAML file that `--config` (or `OCTAVO_CONFIG`) names: `max-model-len: 4096`
4. its default

Sizes take a unit: `512MiB` and `4GiB` are binary, `4G` is the same as `4GiB`, `4GB` is 4,000,000,000 bytes.
Lists (`--api-key`, `--served-model-name`) repeat the flag, separate by commas in a variable, and are YAML lists in a
file. Switches are turned off with `--no-...`, and take `true` or `false` elsewhere. An unknown setting or a value out
of its limits ends the program at once (exit status 2) with one sentence that says where the value came from.

`OCTAVO_CACHE` names the folder that downloads are kept in (default: `octavo` in `$XDG_CACHE_HOME` or in `~/.cache`).

Prefer the environment or a file for secrets: other users of the machine can see the flags of a running process.
"""


def markdown() -> str:
    """The whole page."""
    parts = [_HEAD]
    for title, cls in (("Engine", EngineConfig), ("Server", ServerConfig)):
        parts.append(f"\n## {title}\n\n| flag | what | values | default |\n| --- | --- | --- | --- |\n")
        parts.extend(_row(setting) for setting in settings(cls))
    return "".join(parts)


def _row(setting: Setting) -> str:
    flag = f"`{setting.flag}`" + "".join(f", `--{alias}`" for alias in setting.knob.aliases)
    values = setting.requirement
    if setting.knob.choices:
        values = ", ".join(f"`{choice}`" for choice in setting.knob.choices)
        values += f" ({setting.knob.unit})" if setting.knob.unit else ""
    default = show_default(setting)
    plain = setting.default is None or setting.default in ("", ())
    return f"| {flag} | {setting.knob.help} | {values} | {default if plain else f'`{default}`'} |\n"


if __name__ == "__main__":
    print(markdown(), end="")
