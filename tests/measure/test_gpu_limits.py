"""`scripts/gpu_limits.py`: the least time of a pass, and how fast a device is."""

import torch
from gpu_limits import Rates, least_seconds, measure_rates

from lr.measure.dummy import shape
from lr.model.weights import load_model


def test_a_pass_reads_what_the_model_has():
    config, model = shape("tiny-target"), load_model("tiny-target", dtype=torch.float32)
    weights = sum(p.numel() for p in model.parameters())
    cache = config.cached_per_token
    slow_memory = Rates(copied=1.0, read=1.0, flops=1e9)
    least = least_seconds(config, torch.float32, slow_memory, 2, 100)
    assert least == 4 * (weights + cache * 2 * 100)
    slow_units = Rates(copied=1e18, read=1e18, flops=1.0)
    assert least_seconds(config, torch.float32, slow_units, 2, 9) == 4 * weights


def test_rates_are_measured():
    rates = measure_rates(torch.device("cpu"), torch.float32, small=True)
    assert 1e7 < rates.copied < 1e13
    assert 1e7 < rates.read < 1e13
    assert 1e6 < rates.flops < 1e15
