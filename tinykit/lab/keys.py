"""What makes one call the same as another: the honest key of a row.

A key holds everything that can change a title: the weights, the library and its version, the device and the
precision, the chat template, the recipe, the message, the number of the repeat, tinykit's own code, and the
batch where rows are not computed as if they were alone. Threads and the machine are not in it: they change
how long a title takes, which a row tells with the machine that it was made on.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import tinykit
from tinykit import settings, sources
from tinykit.builds import fingerprint_of, marks_of
from tinykit.errors import TinykitError
from tinykit.lab.plan import Target, digest
from tinykit.loading import checked_dtype
from tinykit.marks import digest as marks_digest
from tinykit.model_spec import ModelSpec
from tinykit.recipes import Recipe
from tinykit.session import TinySession
from tinykit.tokenizer import Message, Tokenizer

FORMAT = 1
NO_MODEL = ""  # in place of a model's name, for recipes that need none
_PACKAGES = {
    "onnx": ("onnxruntime", "tokenizers"),
    "mlx": ("mlx", "mlx-lm", "tokenizers"),
    "transformers": ("transformers", "torch", "tokenizers"),
}
# what shows or evaluates titles, but has no part in making them
_APART = frozenset(
    "lab tune cli magics serve worker doctor.py __main__.py displays.py progress.py events.py inventory.py "
    "hub_listing.py hub_notes.py".split()
)
_PROBE = (Message("system", "Say it in few words."), Message("user", "Why? 42 ünïts, done."))


def call_base(recipe: Recipe, facts: dict[str, Any], *, exact: bool, batch_size: int) -> str:
    """What the keys of all messages of one recipe on one model have in common."""
    fields = {k: v for k, v in recipe.to_dict().items() if k not in ("name", "description")}
    is_alone = batch_size == 1 or exact or facts.get("rows_are_exact", True)
    return digest([FORMAT, facts["identity"], fields, exact, "alone" if is_alone else batch_size])


def call_key(base: str, message: str, repeat: int) -> str:
    """The key of one title."""
    text = f"{base}|{repeat}|{message}"
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def no_model_facts() -> dict[str, Any]:
    """The facts of recipes that ask no model."""
    return {"identity": {"model": NO_MODEL, "code": code_digest()}, "threads": 0}


def facts_of(session: TinySession) -> dict[str, Any]:
    """What a session's model is and runs on; loads it if need be.

    Raises:
        TinykitError: it cannot be loaded.
    """
    loaded = session.load()
    engine, info = loaded.engine, loaded.info
    identity = {
        **engine.identity,
        "device": info.device,
        "providers": list(info.providers),
        "template": _template_digest(engine.tokenizer),
        "packages": package_versions(info.backend),
        "code": code_digest(),
    }
    can_batch = engine.backend.info.can_batch
    return {
        "identity": identity,
        "threads": info.threads,
        "rows_are_exact": not can_batch or engine.rows_are_exact,
    }


def asked_of(target: Target, spec: ModelSpec) -> dict[str, Any]:
    """What was asked for, as far as it can be told without loading: if it is the same, so are the facts."""
    backend = settings.get("backend", target.backend) or ""
    asked: dict[str, Any] = {
        "model": spec.key,
        "device": settings.get("device", target.device) or "cpu",
        "backend": backend,
        "packages": package_versions(backend if backend in _PACKAGES else "onnx"),
        "code": code_digest(),
    }
    try:
        asked["dtype"] = checked_dtype(target.dtype, spec)
        found = sources.locate(spec, asked["dtype"])
        marks = marks_of(found) if found is not None else []
        asked["weights"] = marks_digest([fingerprint_of(spec), *marks])
    except (TinykitError, OSError):
        asked["weights"] = None
    return asked


def package_versions(backend: str) -> dict[str, str]:
    """The versions of the libraries that a backend computes with."""
    found = {}
    for name in _PACKAGES.get(backend, ("tokenizers",)):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = ""
    return found


@functools.cache
def code_digest() -> str:
    """tinykit's version, and a digest of the files that take part in making a title."""
    folder = Path(tinykit.__file__).parent
    return f"{tinykit.__version__} {_digest_of(folder, sorted(folder.rglob('*.py')))[:16]}"


def _digest_of(folder: Path, files: Iterable[Path]) -> str:
    found = hashlib.sha256()
    for file in files:
        name = file.relative_to(folder)
        if name.parts[0] not in _APART and not name.parts[0].startswith("magic"):
            found.update(name.as_posix().encode() + b"\0" + file.read_bytes() + b"\0")
    return found.hexdigest()


def _template_digest(tokenizer: Tokenizer) -> str:
    """What the chat template makes of a fixed chat, as tokens; the recipe's own text is in the key itself."""
    try:
        return digest(tokenizer.encode_chat(list(_PROBE), prefill="<title>"))
    except TinykitError as error:
        return str(error)


@functools.cache
def machine() -> dict[str, Any]:
    """This machine as the header tells it; its name is only in the digest."""
    from tinykit.doctor import processor

    facts = {"system": platform.system(), "processor": processor() or "", "processors": os.cpu_count() or 0}
    return {"id": digest([platform.node(), facts])[:12], **facts}
