"""Decoders that the engine runs: plain functions over packed weights, with pools and attention given from outside."""
