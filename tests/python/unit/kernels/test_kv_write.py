"""Writing keys and values to their places."""

from __future__ import annotations

import pytest
import torch

from mstar_resident.errors import LayoutError
from mstar_resident.kernels.kv_write import write


@pytest.mark.parametrize(("heads", "head_dim", "page_size"), [(1, 64, 16), (2, 256, 128), (3, 128, 48), (20, 64, 16)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_tokens_land_at_their_locations_and_nowhere_else(heads, head_dim, page_size, dtype, device):
    pages, t = 5, 7
    layer = torch.randn(pages, 2, page_size, heads, head_dim).to(dtype)
    loc = torch.randperm((pages - 1) * page_size)[:t] + page_size
    loc[3] = 0  # padding
    k, v = torch.randn(2, t, heads, head_dim).to(dtype)
    expected = layer.clone()
    for i, at in enumerate(loc.tolist()):
        expected[at // page_size, 0, at % page_size] = k[i]
        expected[at // page_size, 1, at % page_size] = v[i]
    got = layer.to(device)
    write(got, k.to(device), v.to(device), loc.to(device))
    assert torch.equal(got.cpu(), expected)


def test_slices_of_a_fused_projection_and_one_layer_of_a_pool_need_no_copy(device):
    fused = torch.randn(3, (4 + 2 + 2) * 64, device=device)
    k, v = fused[:, 256:384].view(3, 2, 64), fused[:, 384:].view(3, 2, 64)
    pool = torch.zeros(2, 4, 2, 16, 2, 64, device=device)
    write(pool[1], k, v, torch.tensor([17, 40, 63], device=device))
    assert not pool[0].any()
    assert torch.equal(pool[1, 1, 0, 1], k[0])
    assert torch.equal(pool[1, 2, 1, 8], v[1])
    assert torch.equal(pool[1, 3, :, 15], torch.stack([k[2], v[2]]))


def test_a_location_is_64_bits_wide(device):
    # Memory that nobody touches: on a CPU only the page that is written takes any.
    pages = 2**31 // (2 * 16 * 64) + 3
    pool = torch.empty(pages, 2, 16, 1, 64, dtype=torch.float16, device=device)
    k, v = torch.randn(2, 1, 1, 64).to(torch.float16).to(device)
    write(pool, k, v, torch.tensor([pages * 16 - 1], device=device))
    assert torch.equal(pool[-1, 0, -1, 0], k[0, 0])
    assert torch.equal(pool[-1, 1, -1, 0], v[0, 0])


def test_a_location_beyond_32_bits_of_tokens_is_written_where_it_belongs(device):
    pool = torch.empty(200_000_001, 2, 16, 1, 1, dtype=torch.int8, device=device)
    k, v = torch.tensor([[[[3]]], [[[5]]]], dtype=torch.int8, device=device)
    write(pool, k, v, torch.tensor([200_000_000 * 16 + 5], device=device))
    assert pool[200_000_000, :, 5, 0, 0].tolist() == [3, 5]


def test_another_shape_or_dtype_is_refused(device):
    pool = torch.zeros(3, 2, 16, 2, 64, device=device)
    k = torch.zeros(2, 2, 64, device=device)
    loc = torch.tensor([16, 17], device=device)
    for arguments in ((k[:1], k, loc), (k, k.transpose(1, 2), loc), (k, k, loc.to(torch.int32))):
        with pytest.raises(LayoutError, match="expected"):
            write(pool, *arguments)
