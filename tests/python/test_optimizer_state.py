"""Where the state of an optimizer goes that the root has and this rank has not."""

from __future__ import annotations

from dataclasses import replace

import torch

from mydist.state import _place_of


def test_a_tensor_fits_where_it_is_wanted() -> None:
    tensor = torch.zeros(2, 3)
    place = _place_of(tensor)
    assert place.fits(torch.ones(2, 3))
    assert not place.fits(torch.ones(2, 3, dtype=torch.float64))
    assert not place.fits(torch.ones(3, 2))
    assert not replace(place, on_gpu=True).fits(tensor)


def test_new_ones_are_made_where_the_root_has_them() -> None:
    # What stands for this rank's GPU is a device that every torch has.
    gpu = torch.device("meta")
    for tensor in (torch.zeros(2, 3), torch.zeros(3, 2).t()):
        place = _place_of(tensor)
        assert place.new(gpu).device.type == "cpu"
        made = replace(place, on_gpu=True).new(gpu)
        assert made.device == gpu
        assert (made.shape, made.stride()) == (tensor.shape, tensor.stride())
