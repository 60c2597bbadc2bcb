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
            bucket whichever of the two is faster there, and ``triton`` where FlashInfer would need its host plan.
        heads: query heads.
        kv_heads: KV heads.
        head_dim: 64, 128 or 256.
        page_size: tokens of a page.
        dtype: of queries and pools, bfloat16 or float16.
        device: a CUDA device.

    Raises:
        LayoutError: an unknown name, or ``flashinfer`` and it is not installed.
    """
    from mstar_resident.attention import flashinfer_fa2  # and with it Triton, which a CPU can do without
    from mstar_resident.attention.flashinfer_fa2 import FlashInferAttention
    from mstar_resident.attention.flashinfer_planned import PlannedFlashInferAttention
    from mstar_resident.attention.measured import MeasuredAttention
    from mstar_resident.attention.triton_split import TritonAttention

    if name not in get_args(Backend):
        raise LayoutError.of("attention", expected=f"one of {list(get_args(Backend))}", got=name)
    if name == "triton":
        return TritonAttention()
    if flashinfer_fa2.installed() is None:
        if name == "flashinfer":
            raise LayoutError.of("attention", expected="flashinfer-python, installed", got="none")
        logger.info("attention: triton in every bucket, FlashInfer is not installed")
        return TritonAttention()
    shape = (heads, kv_heads, head_dim, page_size, dtype, device)
    refused = flashinfer_fa2.refusal(*shape)
    # Pages are read where they lie; copied first where a release cannot read them there.
    gather = refused is not None and flashinfer_fa2.refusal(*shape, gather=True) is None
    if refused is not None and not gather:
        logger.info("fa2 needs its host plan: %s", refused)
        return TritonAttention() if name == "auto" else PlannedFlashInferAttention()
    flashinfer = partial(FlashInferAttention, gather=gather)
    if name == "flashinfer":
        return flashinfer()
    return MeasuredAttention({"triton": TritonAttention, "flashinfer": flashinfer})
