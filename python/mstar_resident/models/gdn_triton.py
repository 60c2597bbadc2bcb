"""The gated delta net on cuda: decode by the fused Triton kernel, prefill in torch."""

from __future__ import annotations

import torch
from torch import Tensor

from mstar_resident.kernels import gdn_decode
from mstar_resident.models.gdn import DeltaInputs, DeltaWeights, TorchGatedDelta


class TritonGatedDelta(TorchGatedDelta):
    """Be a :class:`~mstar_resident.models.gdn.GatedDelta` whose decode step is one kernel, in place, without a plan."""

    def decode(self, x: DeltaInputs, w: DeltaWeights, conv: Tensor, ssm: Tensor, recurrent_index: Tensor) -> Tensor:
        """Take one token a row; see :meth:`mstar_resident.models.gdn.GatedDelta.decode`."""
        out = torch.empty(x.z.shape, dtype=x.z.dtype, device=x.z.device)
        gdn_decode.step(
            x.qkv,
            x.a,
            x.b,
            w.conv,
            w.a_log,
            w.dt_bias,
            conv,
            ssm,
            recurrent_index,
            out,
            z=x.z,
            norm_weight=w.norm,
            eps=w.eps,
        )
        return out
