"""Which attention a node decodes with, by name."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Literal, get_args

from mstar_resident.errors import LayoutError

if TYPE_CHECKING:
    import torch

    from mstar_resident.attention.base import Attention

logger = logging.getLogger("mstar_resident")

Backend = Literal["auto", "flashinfer", "triton"]


def select_attention(
    name: Backend,
    heads: int,
    kv_heads: int,
    head_dim: int,
    page_size: int,
    dtype: torch.dtype,
    device: torch.device | str = "cuda",
) -> Attention:
    """Return the attention of a decoder on cuda. Runs kernels and waits: at start-up only.

    Args:
        name: ``triton``, this package's kernels; ``flashinfer``, its fa2 kernels, planned in the captured graph where
            the installed release plans as this package knows, else by the host before every step; ``auto``, in each
            bucket whichever of the two is faster there, ``triton`` where FlashInfer would need its host plan, and
            ``flashinfer`` where ``triton`` does not take the heads.
        heads: query heads; for ``triton`` at most 16 for each KV head.
        kv_heads: KV heads.
        head_dim: 64, 128 or 256.
        page_size: tokens of a page.
        dtype: of queries and pools, bfloat16 or float16.
        device: a CUDA device.

    Raises:
        LayoutError: an unknown name; ``flashinfer`` and it is not installed; heads that ``triton`` does not take, by
            name or without FlashInfer.
    """
    from mstar_resident.attention import flashinfer_fa2  # and with it Triton, which a CPU can do without
    from mstar_resident.attention.flashinfer_fa2 import FlashInferAttention
    from mstar_resident.attention.flashinfer_planned import PlannedFlashInferAttention
    from mstar_resident.attention.measured import MeasuredAttention
    from mstar_resident.attention.triton_split import TritonAttention
    from mstar_resident.kernels import paged_decode

    if name not in get_args(Backend):
        raise LayoutError.of("attention", expected=f"one of {list(get_args(Backend))}", got=name)
    there = flashinfer_fa2.installed() is not None
    if name == "flashinfer" and not there:
        raise LayoutError.of("attention", expected="flashinfer-python, installed", got="none")
    ours = paged_decode.refusal(heads, kv_heads, head_dim)
    if name == "triton" or not there:
        if ours is not None:
            raise ours
        if name == "auto":
            logger.info("attention: triton in every bucket, FlashInfer is not installed")
        return TritonAttention()
    shape = (heads, kv_heads, head_dim, page_size, dtype, device)
    refused = flashinfer_fa2.refusal(*shape)
    # Pages are read where they lie; copied first where a release cannot read them there.
    gather = refused is not None and flashinfer_fa2.refusal(*shape, gather=True) is None
    if refused is not None and not gather:
        logger.info("fa2 needs its host plan: %s", refused)
        return TritonAttention() if name == "auto" and ours is None else PlannedFlashInferAttention()
    flashinfer = partial(FlashInferAttention, gather=gather)
    if name == "flashinfer" or ours is not None:
        return flashinfer()
    return MeasuredAttention({"triton": TritonAttention, "flashinfer": flashinfer})
