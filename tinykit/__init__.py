"""Tiny local language models in a notebook: title, complete, compare, and take the winner to production.

from tinykit import TinySession

session = TinySession()
session.title("my raspberry pi 4 keeps rebooting when i plug in the external ssd")
"""

from __future__ import annotations

# typing's own would cost ten times what the rest of this module does, and Ctrl-C is not clean meanwhile
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from tinykit.doctor import doctor
    from tinykit.errors import DeviceFallbackWarning, TinykitError
    from tinykit.generation.questions import ChoiceQuestion, ScoreQuestion, YesNoQuestion
    from tinykit.generation.result import Chunk, Completion
    from tinykit.generation.slots import slot_for_key, slot_key
    from tinykit.model_spec import FileSource, HubSource, ModelSpec, WheelSource
    from tinykit.progress import ProgressEvent
    from tinykit.recipes import RECIPES, Recipe
    from tinykit.registry import MODELS, register_model
    from tinykit.residents import loaded
    from tinykit.session import TinySession
    from tinykit.titling import Title

__version__ = "0.1.0"

__all__ = [
    "ChoiceQuestion",
    "Chunk",
    "Completion",
    "DeviceFallbackWarning",
    "FileSource",
    "HubSource",
    "MODELS",
    "ModelSpec",
    "ProgressEvent",
    "RECIPES",
    "Recipe",
    "ScoreQuestion",
    "TinySession",
    "TinykitError",
    "Title",
    "WheelSource",
    "YesNoQuestion",
    "__version__",
    "doctor",
    "enable_magics",
    "loaded",
    "register_model",
    "slot_for_key",
    "slot_key",
]

_HOMES = {
    "MODELS": "tinykit.registry",
    "RECIPES": "tinykit.recipes",
    "ChoiceQuestion": "tinykit.generation.questions",
    "Chunk": "tinykit.generation.result",
    "Completion": "tinykit.generation.result",
    "DeviceFallbackWarning": "tinykit.errors",
    "FileSource": "tinykit.model_spec",
    "HubSource": "tinykit.model_spec",
    "ModelSpec": "tinykit.model_spec",
    "ProgressEvent": "tinykit.progress",
    "Recipe": "tinykit.recipes",
    "ScoreQuestion": "tinykit.generation.questions",
    "TinySession": "tinykit.session",
    "TinykitError": "tinykit.errors",
    "Title": "tinykit.titling",
    "WheelSource": "tinykit.model_spec",
    "YesNoQuestion": "tinykit.generation.questions",
    "doctor": "tinykit.doctor",
    "loaded": "tinykit.residents",
    "register_model": "tinykit.registry",
    "slot_for_key": "tinykit.generation.slots",
    "slot_key": "tinykit.generation.slots",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that `import tinykit` costs next to nothing."""
    if name not in _HOMES:
        raise AttributeError(f"module 'tinykit' has no attribute {name!r}")
    from importlib import import_module

    found = getattr(import_module(_HOMES[name]), name)
    globals()[name] = found  # in place of the module of that name, which the import has put there
    return found


def enable_magics() -> None:
    """What `%load_ext tinykit` does, for a start-up file or a program; again it does nothing.

    Raises:
        OptionError: this is no IPython session.
    """
    from tinykit import magics

    magics.enable()


def load_ipython_extension(shell: Any) -> None:
    """What `%load_ext tinykit` calls: adds `%title`, `%tiny` and `%%tiny_eval`, and shows nothing."""
    from tinykit import magics

    magics.load(shell)


def unload_ipython_extension(shell: Any) -> None:
    """What `%unload_ext tinykit` calls. Models stay loaded."""
    from tinykit import magics

    magics.unload(shell)


def __dir__() -> list[str]:
    return sorted(__all__)
