"""A step that is right in eager, and one that differs in eager from itself."""

import torch


def make(call):
    return (torch.full((3,), 0.5 + call),)


def step(values):
    return values * 2


def wrong(values):
    return values + 1e-3 if torch.compiler.is_compiling() else values * 1
