"""Refuse requests that could never run, before they change anything."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from mstar_resident.engine.config import EngineConfig
from mstar_resident.engine.pages import Ints
from mstar_resident.engine.request import Request, Sampling, State
from mstar_resident.engine.streams import Streams
from mstar_resident.errors import ResidentError
from mstar_resident.models.base import Decoder


class RequestError(ResidentError, ValueError):
    """A request that could never run on the node it was given to."""


def check_request(request: Request, model: Decoder, config: EngineConfig, streams: Mapping[str, Streams]) -> None:
    """Check a request against the model and the node's tables.

    Raises:
        RequestError: it could never run.
    """
    if request.state is not State.WAITING or request.seat:
        raise RequestError.of("request", expected="a new one", got=request.state.value, request=request.id)
    _check_tokens("prompt", request, request.prompt, model.vocab_size)
    if request.max_new < 1:
        raise RequestError.of("max_new", expected="at least 1", got=request.max_new, request=request.id)
    check_sampling(request.sampling, request=request.id)
    if request.positions is not None and len(request.positions) != len(request.prompt):
        raise RequestError.of(
            "positions", expected=f"{len(request.prompt)}, one a token", got=len(request.positions), request=request.id
        )
    read_only = [name for name, entry in streams.items() if not entry.span]
    if (request.context is not None and len(request.context) > 0) != bool(read_only):
        raise RequestError.of(
            "context",
            expected=f"tokens for {read_only}" if read_only else "none",
            got=request.context,
            request=request.id,
        )
    _check_room(request, streams, len(request.prompt) + request.max_new - 1)


def check_sampling(sampling: Sampling, **fields: object) -> None:
    """Check how tokens are to be drawn.

    Raises:
        RequestError: a number is out of range; the error names it, and has ``fields`` too.
    """
    for name, good, expected in (
        ("temperature", sampling.temperature >= 0, "at least 0"),
        ("top_p", 0 < sampling.top_p <= 1, "above 0 and at most 1"),
        ("top_k", sampling.top_k >= 0, "at least 0"),
    ):
        if not good:
            raise RequestError.of(name, expected=expected, got=getattr(sampling, name), **fields)


def check_turn(request: Request, tokens: Ints, max_new: int, streams: Mapping[str, Streams]) -> None:
    """Check a next turn.

    Raises:
        RequestError: the request is not idle, or would outgrow its tables.
    """
    if request.state is not State.IDLE:
        raise RequestError.of("request", expected="an idle one", got=request.state.value, request=request.id)
    if max_new < 1 or not len(tokens):
        raise RequestError.of(
            "turn", expected="tokens, and max_new >= 1", got=(len(tokens), max_new), request=request.id
        )
    _check_room(request, streams, len(request.tokens()) + len(tokens) + max_new - 1)


def _check_tokens(name: str, request: Request, tokens: Ints, vocab: int) -> None:
    if tokens.ndim != 1 or tokens.dtype != np.int64 or not len(tokens):
        raise RequestError.of(
            name, expected="int64 tokens, at least one", got=f"{tokens.dtype}{list(tokens.shape)}", request=request.id
        )
    if int(tokens.min()) < 0 or int(tokens.max()) >= vocab:
        raise RequestError.of(
            name, expected=f"tokens in 0..{vocab - 1}", got=(int(tokens.min()), int(tokens.max())), request=request.id
        )


def _check_room(request: Request, streams: Mapping[str, Streams], tokens: int) -> None:
    for name, entry in streams.items():
        length = tokens if entry.span else len(request.context if request.context is not None else ())
        if length > entry.max_tokens:
            raise RequestError.of(
                "tokens to store", expected=f"at most {entry.max_tokens}", got=length, request=request.id, table=name
            )
