"""Parameters that messages name, spelled as options of the command line."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

import click

from viewfuse.utils.settings import Setting, Spell


def spelling(command: click.Command) -> Spell:
    """How messages of a command spell parameters: as its options."""
    options = {str(one.name): one for one in command.params if isinstance(one, click.Option)}
    options |= {"blocks": options["block"]} if "block" in options else {}

    def spelled(setting: Setting) -> str | None:
        option = options.get(setting.name)
        if option is None:
            return None
        flag, value = option.opts[0], setting.value
        if not setting.has_value:
            return flag
        if option.is_flag:
            return flag if value else (option.secondary_opts or [f"no {flag}"])[0]
        values = [f"{name}={one}" for name, one in value.items()] if isinstance(value, Mapping) else value
        values = values if isinstance(values, list) else [values]
        return " ".join(f"{flag} {shlex.quote(str(one))}" for one in values)

    return spelled
