# %% [markdown]
# # Distil an ensemble, and keep the correlations between its predictions
#
# At the end you have one small network that predicts as an ensemble of forty networks does, and that also predicts how
# the errors at several inputs are correlated.
#
# Needs `pip install '.[data,figures]'`.
#
# ## An ensemble
#
# The data are cars: miles per gallon by horsepower. We leave the strongest cars out of training, so that the members
# disagree about them. All members are trained together, each on its own bootstrap sample of the rows.

# %%
import matplotlib.pyplot as plt
import numpy as np
import torch
from mlxtend.data import autompg_data
from torch import nn

from bdl_pipe import JointGaussian
from bdl_pipe.dark_knowledge import embed, regression_loss

torch.manual_seed(0)
torch.set_num_threads(1)
columns, miles = autompg_data()
power = torch.tensor(columns[:, 2:3]).float()
y = torch.tensor(miles).float().reshape(-1, 1)
strong = power[:, 0] > 150
x = (power - 100) / 40
shift, scale = y[~strong].mean(), y[~strong].std()
inputs, targets = x[~strong], (y[~strong] - shift) / scale

# %%
MEMBERS = 40
sizes = [(1, 40), (40, 40), (40, 1)]
weights = [nn.Parameter(torch.randn(MEMBERS, i, o) / i**0.5) for i, o in sizes]
biases = [nn.Parameter(torch.randn(MEMBERS, 1, o)) for _, o in sizes]
drawn = torch.stack([torch.bincount(torch.randint(len(x), (len(x),)), minlength=len(x)) for _ in range(MEMBERS)])
times = drawn[:, ~strong].float()  # how often each member sees each row


def members(at):
    hidden = at.expand(MEMBERS, -1, -1)
    for layer, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        hidden = hidden @ weight + bias
        hidden = hidden if layer == len(sizes) - 1 else hidden.tanh()
    return hidden  # [member, row, 1]


optimiser = torch.optim.Adam([*weights, *biases], lr=3e-3)
for _ in range(800):
    optimiser.zero_grad()
    (times * (members(inputs) - targets)[..., 0].square()).mean().backward()
    optimiser.step()
with torch.no_grad():
    noise = (times * (members(inputs) - targets)[..., 0].square()).sum().item() / times.sum().item()

# %% [markdown]
# ## A student that is one function
#
# The plain student learns the mean and the variance of the ensemble at each input. It predicts one band and loses the
# single members. Distillation needs no label, so the student also learns at horsepowers where there are no cars.

# %%
probe = torch.linspace(-1.6, 3.6, 150).reshape(-1, 1)
with torch.no_grad():
    taught = members(probe)  # [member, input, 1]


def student(outputs):
    return nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs))


def trained(network, loss):
    rule = torch.optim.Adam(network.parameters(), lr=3e-3)
    slower = torch.optim.lr_scheduler.CosineAnnealingLR(rule, 1500)
    for _ in range(1500):
        rule.zero_grad()
        loss(network(probe)).backward()
        rule.step()
        slower.step()
    return network


def plain_loss(answer):
    mean, log_variance = answer[None, :, :1], answer[None, :, 1:]
    return regression_loss(mean.expand_as(taught), log_variance.expand_as(taught), taught, noise).mean()


plain = trained(student(2), plain_loss)

# %% [markdown]
# ## A student that is many functions
#
# This student is f(x, z) = a(x) + B(x) z with a few standard normal numbers z. Each member has its own z: `embed`
# computes it from the principal components of the members' predictions. The loss compares each member with
# a(x) + B(x) z at the member's z. Every other z gives a new function, which plays the part of a further member.

# %%
DIMENSION = 6
latents = embed(taught, DIMENSION)  # [member, dimension]


def functions(answer):
    mean, rest, log_variance = answer.split([1, DIMENSION, 1], dim=1)
    return mean[:, 0] + latents @ rest.T, log_variance


def latent_loss(answer):
    values, log_variance = functions(answer)
    return regression_loss(values[..., None], log_variance[None].expand_as(taught), taught, noise).mean()


latent = trained(student(1 + DIMENSION + 1), latent_loss)
numbers = {"ensemble": sum(weight.numel() for weight in (*weights, *biases))}
numbers["student"] = sum(weight.numel() for weight in latent.parameters())
print(f"The ensemble has {numbers['ensemble']:,} numbers and {MEMBERS} passes;", end=" ")
print(f"the student has {numbers['student']:,} and one.")

# %% [markdown]
# ## See it
#
# The members agree at the training cars (black) and disagree at the strong cars (red). The band of the plain student is
# as wide as the members' band, but it has no curves. The student with z draws curves that look like the members'.

# %%
grid = torch.linspace(40, 240, 120).reshape(-1, 1)
with torch.no_grad():
    at = (grid - 100) / 40
    curves, of_plain, of_latent = members(at)[..., 0], plain(at), latent(at)
z = torch.randn(15, DIMENSION)
drawn_curves = of_latent[:, 0] + z @ of_latent[:, 1 : 1 + DIMENSION].T
deviation = of_plain[:, 1].exp().sub(noise).clamp_min(0).sqrt()
figure, axes = plt.subplots(1, 3, sharey=True, figsize=(7.2, 2.8))
axes[0].plot(grid, (shift + scale * curves[:15]).T, "C0", lw=0.7)
axes[1].fill_between(
    grid[:, 0],
    *(shift + scale * (of_plain[:, 0] + side * 2 * deviation) for side in (-1, 1)),
    color="C1",
    alpha=0.4,
    lw=0,
)
axes[2].plot(grid, (shift + scale * drawn_curves).T, "C2", lw=0.7)
for axis, title in zip(axes, ("members of the ensemble", "plain student", "student with z"), strict=True):
    axis.plot(power[~strong], y[~strong], "k.", ms=1.5)
    axis.plot(power[strong], y[strong], "r.", ms=1.5)
    axis.set(xlabel="horsepower", title=title, ylim=(-5, 50))
axes[0].set_ylabel("miles per gallon")
plt.show()

# %% [markdown]
# ## Where it matters: several predictions together
#
# Suppose that you buy a fleet of strong cars: how much will it use in all? If the curve is wrong about one strong car,
# it is wrong about the next strong car in the same direction, and such errors do not average out. A joint distribution
# includes this correlation. The plain student has only the product of its single predictions, which does not.

# %%
fleet = x[strong]
answers = (y[strong] - shift) / scale
with torch.no_grad():
    of_members, of_plain, of_latent = members(fleet)[..., 0].double(), plain(fleet).double(), latent(fleet).double()
between = {
    "ensemble": torch.cov(of_members.T),
    "student with z": of_latent[:, 1 : 1 + DIMENSION] @ of_latent[:, 1 : 1 + DIMENSION].T,
    "plain student": torch.zeros(len(fleet), len(fleet), dtype=torch.float64),
}
means = {"ensemble": of_members.mean(0), "student with z": of_latent[:, 0], "plain student": of_plain[:, 0]}
alone = {name: torch.full((len(fleet),), noise, dtype=torch.float64) for name in between}
alone["plain student"] = of_plain[:, 1].exp()


def deviation_of_mean(name, cars):
    """Return the standard deviation of the mean of the first ``cars`` cars, in miles per gallon."""
    return scale.item() * (between[name][:cars, :cars].sum() + alone[name][:cars].sum()).sqrt().item() / cars


counts = range(1, len(fleet) + 1, 3)
figure, (left, right) = plt.subplots(1, 2)
for name, style in zip(between, ("C0-", "C2--", "C1-"), strict=True):
    left.plot(counts, [deviation_of_mean(name, cars) for cars in counts], style, label=name)
left.set(xlabel="cars in the fleet", ylabel="miles per gallon", ylim=(0, None), title="Doubt about the fleet's mean")
left.legend(fontsize=7)
order = power[strong][:, 0].argsort()
shown = [torch.corrcoef(of_members.T[order]).numpy()]
deviations = between["student with z"].diagonal().sqrt()
shown.append((between["student with z"] / deviations / deviations[:, None])[order][:, order].numpy())
both = np.tril(shown[0]) + np.triu(shown[1], 1)
right.imshow(both, cmap="RdBu_r", vmin=-1, vmax=1)
right.set(xticks=[], yticks=[], title="Correlations: ensemble below,\nstudent with z above")
plt.show()

# %%
doubt = {name: deviation_of_mean(name, len(fleet)) for name in between}
error = (scale * (answers.mean() - means["ensemble"].mean())).abs().item()
for name, value in doubt.items():
    print(f"{name:15} doubts the mean of the fleet by {value:.2f} miles per gallon")
print(f"The ensemble is wrong about it by {error:.2f}.")

# %% [markdown]
# `JointGaussian` gives the joint density of all targets; `gap` is its logarithm minus the logarithm of the product of
# the single densities. If the gap is above zero, the cars confirm the predicted correlation.

# %%
gaps = {}
for name in ("ensemble", "student with z"):
    joint = JointGaussian(
        means[name][None, None, :, None], alone[name][None, None, :, None], between[name][None, None, None]
    )
    gaps[name] = joint.gap(answers[None]).item()
    print(f"{name:15} {gaps[name]:+.1f} nats over {len(fleet)} cars")

# %% tags=["check"]
assert doubt["plain student"] < 0.6 * doubt["ensemble"]
assert 0.9 < doubt["student with z"] / doubt["ensemble"] < 1.1
assert min(gaps.values()) > 0
assert numbers["student"] < numbers["ensemble"] / 5

# %% [markdown]
# ## What next
#
# - Without a loop of your own: `BayesianRegressor("dark_knowledge", made_from="ensemble")`, or any other teacher; its
#   `student` may be plain, a latent or heads: [dark knowledge](../families/dark-knowledge.md).
# - The joint predictive of any method, `model.joint(X, rows=20)`, and its scores in the report:
#   [several inputs together](../joint-predictions.md).
# - Markov chains as the ensemble: [what Markov chains add](3_what_sgmcmc_adds.md).
