"""Tiny local language models in a notebook: title, complete, compare, and take the winner to production.

from tinykit import TinySession

session = TinySession()
session.title("my raspberry pi 4 keeps rebooting when i plug in the external ssd")
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tinykit.doctor import doctor
    from tinykit.errors import DeviceFallbackWarning, TinykitError
    from tinykit.generation.result import Completion
    from tinykit.progress import ProgressEvent
    from tinykit.recipes import RECIPES, Recipe
    from tinykit.registry import MODELS, ModelSpec, register_model
    from tinykit.residents import loaded
    from tinykit.session import TinySession
    from tinykit.titling import Title

__version__ = "0.1.0"

__all__ = [
    "Completion",
    "DeviceFallbackWarning",
    "MODELS",
    "ModelSpec",
    "ProgressEvent",
    "RECIPES",
    "Recipe",
    "TinySession",
    "TinykitError",
    "Title",
    "__version__",
    "doctor",
    "loaded",
    "register_model",
]

_HOMES = {
    "MODELS": "tinykit.registry",
    "RECIPES": "tinykit.recipes",
    "Completion": "tinykit.generation.result",
    "DeviceFallbackWarning": "tinykit.errors",
    "ModelSpec": "tinykit.registry",
    "ProgressEvent": "tinykit.progress",
    "Recipe": "tinykit.recipes",
    "TinySession": "tinykit.session",
    "TinykitError": "tinykit.errors",
    "Title": "tinykit.titling",
    "doctor": "tinykit.doctor",
    "loaded": "tinykit.residents",
    "register_model": "tinykit.registry",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that `import tinykit` costs next to nothing."""
    if name not in _HOMES:
        raise AttributeError(f"module 'tinykit' has no attribute {name!r}")
    from importlib import import_module

    found = getattr(import_module(_HOMES[name]), name)
    globals()[name] = found  # in place of the module of that name, which the import has put there
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
