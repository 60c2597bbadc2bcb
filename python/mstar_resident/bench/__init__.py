"""Measure the engine end to end: a resident arm beside a host-planned one, on the shapes of real models."""
