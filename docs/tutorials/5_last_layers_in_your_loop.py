# %% [markdown]
# # A Bayesian last layer in your own training loop
#
# At the end you have your own training loop with one layer replaced, and intervals that widen where the data end.
#
# Needs `pip install '.[data,figures]'`.
#
# ## The loop that you have
#
# The data are cars: miles per gallon by horsepower. We leave the strongest cars out of training, so that you can see
# the predictions beyond the data. First we train the usual network with its usual loss; the spread of its errors gives
# its interval.

# %%
import matplotlib.pyplot as plt
import torch
from mlxtend.data import autompg_data
from torch import nn

from bdl_pipe.last_layer import Regression

torch.manual_seed(0)
torch.set_num_threads(1)
columns, miles = autompg_data()
power = torch.tensor(columns[:, 2:3]).float()
y = torch.tensor(miles).float().reshape(-1, 1)
strong = power[:, 0] > 130
x = (power - power[~strong].mean()) / power[~strong].std()
shift, scale = y[~strong].mean(), y[~strong].std()
inputs, targets = x[~strong], (y[~strong] - shift) / scale


def trunk():
    return nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())


# %%
plain = nn.Sequential(trunk(), nn.Linear(64, 1))
optimiser = torch.optim.AdamW(plain.parameters(), lr=3e-3)
for _ in range(1000):
    optimiser.zero_grad()
    nn.functional.mse_loss(plain(inputs), targets).backward()
    optimiser.step()
spread = (plain(inputs) - targets).std().item()

# %% [markdown]
# ## The loop with one layer replaced
#
# `Regression` replaces `nn.Linear` and the loss. It learns a Gaussian over the weights of the last layer and the
# variance of the noise. Its `loss` is minus a lower bound on the log evidence, in closed form: nothing is sampled, and
# a step costs as much as before.

# %%
features, layer = trunk(), Regression(in_features=64, out_features=1, covariance="dense")
optimiser = torch.optim.AdamW([*features.parameters(), *layer.parameters()], lr=3e-3)
losses = []
for _ in range(1000):
    optimiser.zero_grad()
    loss = layer.loss(features(inputs), targets, num_train=len(inputs))
    loss.backward()
    optimiser.step()
    losses.append(loss.item())
print(f"The bound rose from {-losses[0]:.2f} to {-losses[-1]:.2f} nats a row.")

# %% [markdown]
# ## Predictions
#
# `predict` returns a predictive with a mean, a variance, quantiles and densities. `noise_covariance` is the part of the
# variance that more training rows would not reduce.

# %%
with torch.no_grad():
    predictive = layer.predict(features(x))
    mean = plain(x)
LEVEL = 0.9
half = torch.special.ndtri(torch.tensor((1 + LEVEL) / 2)).item()  # standard deviations on each side
inside = {
    "the usual network": (mean - (y - shift) / scale).abs()[:, 0] < half * spread,
    "variational last layer": ((predictive.mean - (y - shift) / scale).abs() < half * predictive.variance.sqrt())[:, 0],
}
share = {}
for name, held in inside.items():
    share[name] = held[strong].float().mean().item()
    print(f"{name:24} holds {held[~strong].float().mean():.0%} of the cars in training", end="")
    print(f" and {share[name]:.0%} of the {int(strong.sum())} strong ones; it claims {LEVEL:.0%}")

# %% tags=["check"]
assert share["variational last layer"] > share["the usual network"]

# %% [markdown]
# ## See it
#
# Left, the usual network: its interval has the same width everywhere, even where there is no training row. Right, the
# variational last layer: its interval widens where the training rows (black) end, before the strong cars (red) begin.

# %%
grid = torch.linspace(40, 240, 150).reshape(-1, 1)
with torch.no_grad():
    at = (grid - power[~strong].mean()) / power[~strong].std()
    answer, curve = layer.predict(features(at)), plain(at)
curves = {
    "the usual network": (curve, torch.full_like(curve, spread)),
    "variational last layer": (answer.mean, answer.variance.sqrt()),
}
figure, axes = plt.subplots(1, 2, sharey=True)
for axis, (name, (middle, deviation)) in zip(axes, curves.items(), strict=True):
    low, high = (shift + scale * (middle + side * deviation) for side in (-half, half))
    axis.fill_between(grid[:, 0], low[:, 0], high[:, 0], alpha=0.25, lw=0)
    axis.plot(grid, shift + scale * middle)
    axis.plot(power[~strong], y[~strong], "k.", ms=2)
    axis.plot(power[strong], y[strong], "r.", ms=2)
    axis.set(xlabel="horsepower", title=name, ylim=(-10, 50))
axes[0].set_ylabel("miles per gallon")
plt.show()

# %%
figure, axis = plt.subplots(figsize=(7.2, 2.2))
noise = layer.noise_covariance.item()
axis.plot(grid, scale * (answer.variance - noise).sqrt()[:, 0], label="what more cars would take away")
axis.plot(grid, scale * torch.full_like(grid, noise).sqrt(), label="noise")
axis.axvspan(power[~strong].min().item(), power[~strong].max().item(), color="0.93", label="horsepower in training")
axis.set(xlabel="horsepower", ylabel="miles per gallon", title="Two parts of the standard deviation")
axis.legend(fontsize=7)
plt.show()

# %% [markdown]
# ## What next
#
# - Classes: `Discriminative` replaces `nn.Linear` and the cross-entropy, and `Generative` also scores how familiar an
#   input is: [last layers](../families/last-layers.md), and [out of distribution](6_out_of_distribution.md).
# - Without a loop of your own: `BayesianRegressor("vbll").fit(X, y)`, in [scikit-learn estimators](../estimators.md).
# - With a network that you have already trained: `bayesianise(model, "vbll", loader, epochs=1)`, in
#   [your own network](2_your_own_network.md).
