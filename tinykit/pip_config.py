"""Where pip is configured to look for packages, found out without pip.

The same variables and files as pip's, in pip's order: files for the whole machine, for the user, for this
environment, the one that `PIP_CONFIG_FILE` names, then `PIP_*` variables; each later one wins. Within them
the section of a command wins over `[global]`. See https://pip.pypa.io/en/stable/topics/configuration/
"""

from __future__ import annotations

import configparser
import locale
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from tinykit.errors import OptionError

DEFAULT_INDEX_URL = "https://pypi.org/simple"

_SECTIONS = ("global", "install", "download")  # later ones win
_OPTIONS = (
    "index-url", "extra-index-url", "find-links", "no-index", "cert", "client-cert",
    "trusted-host", "proxy", "timeout",
)  # fmt: skip
_VARIABLES = {option: f"PIP_{option.upper().replace('-', '_')}" for option in _OPTIONS}
_TRUE = ("y", "yes", "t", "true", "on", "1")
_FALSE = ("n", "no", "f", "false", "off", "0")


@dataclass(frozen=True)
class PipConfig:
    """What pip would use to find and fetch a package."""

    index_urls: tuple[str, ...] = (DEFAULT_INDEX_URL,)
    find_links: tuple[str, ...] = ()
    cert: str | None = None
    client_cert: str | None = None
    trusted_hosts: tuple[str, ...] = ()
    proxy: str | None = None
    timeout_s: float = 15.0

    def local_only(self) -> PipConfig:
        """The same without what needs a network."""
        return replace(
            self,
            index_urls=tuple(filter(is_local, self.index_urls)),
            find_links=tuple(filter(is_local, self.find_links)),
        )


@dataclass(frozen=True)
class _Value:
    text: str
    where: str


def read_pip_config() -> PipConfig:
    """The configuration as it is now.

    Raises:
        OptionError: A config file cannot be read, or a value is not valid. The message names the place.
    """
    values = _values()
    has_no_index = "no-index" in values and _flag("no-index", values["no-index"])
    index_url = values["index-url"].text if "index-url" in values else DEFAULT_INDEX_URL
    return PipConfig(
        index_urls=() if has_no_index else (index_url, *_words(values, "extra-index-url")),
        find_links=tuple(_expand_user(link) for link in _words(values, "find-links")),
        cert=_path(values, "cert"),
        client_cert=_path(values, "client-cert"),
        trusted_hosts=_words(values, "trusted-host"),
        proxy=values["proxy"].text if "proxy" in values else None,
        timeout_s=_seconds(values["timeout"]) if "timeout" in values else PipConfig.timeout_s,
    )


def is_local(location: str) -> bool:
    """True for a path or a file URL."""
    return "://" not in location or location.startswith("file:")


def redact(text: str) -> str:
    """The text with user names and passwords in its URLs replaced."""
    return re.sub(r"(?<=://)[^/\s]*@", "***@", text)


def config_files() -> list[Path]:
    """The files that pip would read, weakest first; most of them usually do not exist."""
    named = os.environ.get("PIP_CONFIG_FILE")
    if named == os.devnull:
        return []
    name = "pip.ini" if sys.platform == "win32" else "pip.conf"
    folders = [*_machine_folders()]
    if not (named and Path(named).exists()):
        folders += _user_folders()
    files = [folder / name for folder in (*folders, Path(sys.prefix))]
    return [*files, Path(named)] if named else files


def _machine_folders() -> list[Path]:
    if sys.platform == "win32":
        return [Path(os.environ.get("PROGRAMDATA", r"C:\ProgramData")) / "pip"]
    if sys.platform == "darwin":
        return [Path("/Library/Application Support/pip")]
    roots = os.environ.get("XDG_CONFIG_DIRS", "").strip() or "/etc/xdg"
    return [*(Path(root) / "pip" for root in roots.split(os.pathsep)), Path("/etc")]


def _user_folders() -> list[Path]:
    home = Path.home()
    if sys.platform == "win32":
        return [home / "pip", Path(os.environ.get("APPDATA", home / "AppData" / "Roaming")) / "pip"]
    if sys.platform == "darwin":
        current = home / "Library" / "Application Support" / "pip"
        return [home / ".pip", current if current.is_dir() else home / ".config" / "pip"]
    root = os.environ.get("XDG_CONFIG_HOME", "").strip()
    return [home / ".pip", (Path(root) if root else home / ".config") / "pip"]


def _values() -> dict[str, _Value]:
    by_section: dict[str, dict[str, _Value]] = {section: {} for section in _SECTIONS}
    for path in config_files():
        for section, option, text in _read_file(path):
            by_section[section][option] = _Value(text, str(path))
    merged: dict[str, _Value] = {}
    for section in _SECTIONS:
        merged.update({option: value for option, value in by_section[section].items() if value.text})
    for option, variable in (*_VARIABLES.items(), ("timeout", "PIP_DEFAULT_TIMEOUT")):
        if os.environ.get(variable):
            merged[option] = _Value(os.environ[variable], variable)
    return merged


def _read_file(path: Path) -> Iterator[tuple[str, str, str]]:
    parser = configparser.RawConfigParser()
    try:
        parser.read(path, encoding=locale.getencoding())
    except (OSError, UnicodeDecodeError, configparser.Error) as exc:
        message = f"The pip config file {path} cannot be read: {redact(str(exc))}"
        raise OptionError(message, name="pip", value=path) from None  # the cause may quote a password
    for section in _SECTIONS:
        for key, text in parser.items(section) if parser.has_section(section) else ():
            option = key.lower().replace("_", "-").removeprefix("--")
            option = {"default-timeout": "timeout"}.get(option, option)
            if option in _OPTIONS:
                yield section, option, text.strip()


def _words(values: dict[str, _Value], option: str) -> tuple[str, ...]:
    return tuple(values[option].text.split()) if option in values else ()


def _path(values: dict[str, _Value], option: str) -> str | None:
    if option not in values:
        return None
    value = values[option]
    path = _expand_user(value.text)
    if not Path(path).exists():
        raise OptionError(
            f"{value.where} sets {option} to {path!r}, which does not exist", name=option, value=path
        )
    return path


def _expand_user(text: str) -> str:
    return os.path.expanduser(text) if text.startswith("~") else text  # noqa: PTH111  # may be no path


def _flag(option: str, value: _Value) -> bool:
    if value.text.lower() in _TRUE:
        return True
    if value.text.lower() in _FALSE:
        return False
    raise OptionError(
        f"{value.where} sets {option} to {value.text!r}, but must be yes or no", name=option, value=value.text
    )


def _seconds(value: _Value) -> float:
    try:
        seconds = float(value.text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise OptionError(
            f"{value.where} sets timeout to {value.text!r}, but must be a number of seconds",
            name="timeout",
            value=value.text,
        )
    return seconds
