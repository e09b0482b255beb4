"""The influence of each training row on a coreset: the outer gradient of eq. 22, row by row.

The outer loss is a sum over training rows of ℓ_i(S) = −log p(y_i | x_i, S) (eq. 27). With eq. 22 and ∇²_μ L_S =
β_S ∇_μ λ, the gradient of a row's loss with respect to the coreset S = (x̂, Ŷ) is

    ∇_S ℓ_i = −(∇_S ∇_μ L_S) (∇²_μ L_S)⁻¹ ∇_μ ℓ_i = −β_S⁻¹ (∇_S ∇_μ ℓ_S) ∇_λ ℓ_i

and the influence of row i on a reference loss L, the mean loss of reference rows, is

    s_i = ⟨∇_S ℓ_i, ∇_S L⟩

A gradient step of rate η on the mean loss of n rows, without row i, ends at a reference loss that is η s_i / n greater
than after the step with it, up to η². A row with s_i > 0 is useful. With reference rows that S was not learned from,
this is the agreement of the row's gradient with the gradient of the expected loss. With the training rows themselves
the mean of s_i is ‖∇_S L‖², which is 0 when S has converged.

All s_i are one directional derivative: the row losses along ∇_S L, in forward mode, for the price of a few forward
passes. No gradient of a single row and no matrix of eq. 22 is formed.

Source: Lee et al. 2025, eq. 9–12 and 22; the influence of a step is of Pruthi et al. 2020, "Estimating training data
influence by tracing gradient descent". Deviations: the paper states eq. 22 for the whole loss and does not use it. It
leaves out β_S. Koh and Liang (2017) leave a row out of the optimum, by the inverse Hessian of the outer loss; we leave
it out of a step. The KL of eq. 27 (β_D = 1e-8) is not part of a row's loss.
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from ... import networks
from ...artifacts import State
from ...errors import require
from ...seeds import Seed
from ..shared.trunk import features
from . import closed_form
from .posterior import VbpcPosterior

_CHUNK = 250  # inputs per forward pass; their activations fit in the processor's cache


def row_influence(
    students: Sequence[VbpcPosterior],
    coreset: State,
    rows: tuple[Float[Tensor, "row ..."], Int[Tensor, " row"]],
    reference: tuple[Float[Tensor, "other ..."], Int[Tensor, " other"]],
) -> Float[Tensor, " row"]:
    """Return the influence s_i of each row on a coreset: how much an outer step without the row loses on other rows.

    Args:
        students: posteriors whose networks φ are used; both gradients are means over them. They need not be fitted to
            ``coreset``, as their heads are solved anew.
        coreset: the state of a coreset, with ``images`` and ``labels``.
        rows: transformed inputs and class numbers of the rows that are scored.
        reference: transformed inputs and class numbers of the rows that the reference loss is the mean of; validation
            rows, so that no row is both fitted and scored.

    Returns:
        s_i in nats², per squared unit of the coreset's images and labels; positive for useful rows.

    Raises:
        ConfigError: there is no student.
        Diverged: a student's features of the coreset are not finite.
    """
    require(len(students) > 0, "students", "must have at least one posterior", len(students))
    there = students[0].head.mean
    coreset_now = tuple(coreset.tensors[name].to(there).requires_grad_() for name in ("images", "labels"))
    loss = torch.stack([row_losses(student, *reference)(*coreset_now).mean() for student in students]).mean()
    direction = torch.autograd.grad(loss, coreset_now)
    fixed = tuple(tensor.detach() for tensor in coreset_now)
    slopes = [torch.func.jvp(row_losses(student, *rows), fixed, direction)[1] for student in students]
    return torch.stack(slopes).mean(0).detach()


def row_losses(
    student: VbpcPosterior, inputs: Float[Tensor, "row ..."], classes: Int[Tensor, " row"]
) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the losses [row] as a function of the coreset's images and labels, with the student's features."""
    spec, head = student.spec, student.head
    network = networks.build(spec.network, spec.input_shape, 0, rng=Seed(0)).to(head.mean)
    weights = {name: values for name, values in student.state().tensors.items() if name.startswith("trunk.")}
    network.load_state_dict(weights)
    network.requires_grad_(False)
    parts = inputs.to(head.mean).split(_CHUNK)
    phi = torch.cat([features(network, part, spec.feature_scale) for part in parts])

    def losses(images: Tensor, labels: Tensor) -> Tensor:
        coreset_features = features(network, images, spec.feature_scale)
        q = closed_form.solve(coreset_features, labels, spec.rho, spec.ratio * spec.rho * len(images))
        return F.nll_loss(closed_form.class_log_probs(*q.logit_moments(phi)), classes, reduction="none")

    return losses
