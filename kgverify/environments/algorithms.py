"""The algorithms whose updates are verified, as their papers define them, with every choice that papers leave open."""

from dataclasses import dataclass, fields
from typing import Literal

from kgverify.arguments import check_fields
from kgverify.errors import UserError


class _Checked:
    """A record whose numbers are checked when it is made."""

    def __post_init__(self) -> None:
        """Raise a UserError for a field of another type, or outside its range."""
        check_fields(self)
        for field in fields(self):  # type: ignore[arg-type]  # each subclass is a dataclass
            value = getattr(self, field.name)
            most = 1.0 if field.name in ("gamma", "lam", "betas", "dampening") else float("inf")
            least = -float("inf") if field.name.endswith("coefficient") else 0.0
            for number in value if isinstance(value, tuple) else (value,):
                # NaN lies in no range.
                if isinstance(number, float | int) and not least <= number <= most:
                    where = f"{type(self).__name__}({field.name}=...)"
                    raise UserError(f"expected a number from {least:g} to {most:g}, found {number:g}", where=where)


@dataclass(frozen=True, kw_only=True)
class SGD(_Checked):
    """Stochastic gradient descent, as `torch.optim.SGD` defines it.

    lr:       the learning rate
    momentum, dampening, nesterov, weight_decay: as in torch

    Example:
        >>> import kgverify as kv
        >>> kv.SGD(lr=0.1).momentum
        0.0
    """

    lr: float
    momentum: float = 0.0
    dampening: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Adam(_Checked):
    """Adam (Kingma and Ba 2015), as `torch.optim.Adam` defines it.

    lr:        the learning rate
    betas:     the decay of both moments
    eps:       the number added to the square root of the second moment
    weight_decay: its factor
    decoupled: whether the decay applies to the weights, as in AdamW (Loshchilov and Hutter 2019), not to the gradients

    Example:
        >>> import kgverify as kv
        >>> kv.Adam(lr=3e-4).betas
        (0.9, 0.999)
    """

    lr: float
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    decoupled: bool = False


@dataclass(frozen=True, kw_only=True)
class PPO(_Checked):
    """Proximal policy optimisation with the clipped surrogate (Schulman et al. 2017), and GAE (Schulman et al. 2016).

    gamma, lam:  the discount, and the decay of the trace of GAE
    bootstrap:   where a value stands for the rewards that follow: `always`, where an episode is truncated and where the
                 buffer ends; `end`, only where the buffer ends, so that a truncated episode counts as terminated; `never`
    clip:        the distance of the ratio of probabilities from 1 at which it is clipped; None for no ratio: the surrogate
                 is the log-probability times the advantage
    value_clip:  the distance from the recorded value at which the new value is clipped; None for no clipping
    value_clip_larger: whether the larger of the clipped and the unclipped loss counts, or the clipped one
    value_scale: the factor of the squared error in the value loss, 1/2 or 1
    value_coefficient, entropy_coefficient: total = policy + value_coefficient · value − entropy_coefficient · entropy
    normalize_advantages: over the rows of a `minibatch`, over the whole `buffer`, or `never`
    normalize_ddof, normalize_eps: (A − mean) / (std + eps), the sum of squares divided by the number of rows − ddof
    reduction:   `mean` or `sum` over the rows of a minibatch
    with_replacement: whether a row may appear twice in a minibatch
    max_grad_norm: the Euclidean norm over all gradients to which they are scaled down; None for any norm
    optimizer:   `Adam` or `SGD`; without it, the update of the weights is not compared

    Example:
        >>> import kgverify as kv
        >>> kv.PPO(gamma=0.99, lam=0.95, optimizer=kv.Adam(lr=3e-4)).clip
        0.2
    """

    gamma: float = 0.99
    lam: float = 0.95
    bootstrap: Literal["always", "end", "never"] = "always"
    clip: float | None = 0.2
    value_clip: float | None = None
    value_clip_larger: bool = True
    value_scale: float = 0.5
    value_coefficient: float = 0.5
    entropy_coefficient: float = 0.0
    normalize_advantages: Literal["minibatch", "buffer", "never"] = "minibatch"
    normalize_ddof: int = 1
    normalize_eps: float = 1e-8
    reduction: Literal["mean", "sum"] = "mean"
    with_replacement: bool = False
    max_grad_norm: float | None = None
    optimizer: Adam | SGD | None = None


@dataclass(frozen=True, kw_only=True)
class Reinforce(PPO):
    """REINFORCE with a baseline (Williams 1992): the return minus the recorded value, times the log-probability.

    The fields are those of `PPO`, with other defaults: the whole return, nothing bootstrapped, no ratio, no normalisation.

    Example:
        >>> import kgverify as kv
        >>> kv.Reinforce(gamma=0.9).bootstrap
        'never'
    """

    lam: float = 1.0
    bootstrap: Literal["always", "end", "never"] = "never"
    clip: float | None = None
    normalize_advantages: Literal["minibatch", "buffer", "never"] = "never"
