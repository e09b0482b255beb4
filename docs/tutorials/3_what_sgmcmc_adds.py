# %% [markdown]
# # What Markov chains add, and how to see whether they have mixed
#
# At the end you have Markov chains over the weights of your network, their traces and R-hat, and intervals that are
# wide where you have no data.
#
# Needs `pip install '.[data,figures]' 'arviz<1'` (the extra `pipeline` has all of them).
#
# ## One network, one curve
#
# The data are cars: how far does a car go on a gallon, given its horsepower? A network gives one curve. It does not
# show which other curves would fit as well.

# %%
import arviz
import matplotlib.pyplot as plt
import numpy as np
import torch
from mlxtend.data import autompg_data
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bdl_pipe

torch.manual_seed(0)
torch.set_num_threads(1)
columns, miles = autompg_data()
order = np.random.default_rng(0).permutation(len(miles))
power, miles = columns[order, 2], miles[order]


def scaled(horsepower):
    return torch.tensor((horsepower - 100) / 40).float().reshape(-1, 1)


x, y = scaled(power), torch.tensor(miles).float().reshape(-1, 1)
train, test = slice(0, 120), slice(120, None)
loader = DataLoader(TensorDataset(x[train], y[train]), batch_size=40, shuffle=True)

# %%
model = nn.Sequential(nn.Linear(1, 30), nn.Tanh(), nn.Linear(30, 1))
optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
with torch.no_grad():
    model[-1].bias.fill_(y[train].mean())
for _ in range(300):
    for inputs, targets in loader:
        optimiser.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimiser.step()
network = bdl_pipe.bayesianise(model, "deterministic", loader)

# %% [markdown]
# ## Chains that begin at your network
#
# `sgmcmc` runs several chains of stochastic-gradient Hamiltonian Monte Carlo. Each chain draws networks from their
# posterior given the rows. We run four short chains and four long chains.

# %%
CHAINS = 4
short = bdl_pipe.bayesianise(model, "sgmcmc", loader, epochs=40, chains=CHAINS, held_out=0)
kept = {"steps": 6000, "burn_in": 1200, "every": 48}  # drop the first steps, then keep each 48th network
options = {"epochs": 2000, "lr": 3e-2, "config": {"thinning": kept}}
long = bdl_pipe.bayesianise(model, "sgmcmc", loader, chains=CHAINS, held_out=0, **options)
print("short:", *short.notes)
print("long: ", *(long.notes or ["no note"]))

# %% [markdown]
# ## Traces
#
# Do not judge chains by their weights: if you swap hidden units, the weights change and the function does not. Look at
# the predictions. Below is the prediction for one strong car, draw by draw. Chains that have mixed look alike: no chain
# stays apart from the others, and none drifts.


# %%
def traces(posterior, horsepower):
    means = posterior.predict(scaled(np.array([float(horsepower)]))).draw_mean
    return means.reshape(CHAINS, -1).numpy()


STRONG = 220
figure, axes = plt.subplots(1, 2, sharey=True)
for axis, (name, posterior) in zip(axes, {"short chains": short, "long chains": long}.items(), strict=True):
    for chain in traces(posterior, STRONG):
        axis.plot(chain, lw=1)
    axis.set(xlabel="draw", title=f"A car of {STRONG} horsepower: {name}")
axes[0].set_ylabel("miles per gallon")
plt.show()

# %% [markdown]
# ## R-hat
#
# R-hat compares the variance between the chains with the variance within each chain. If it is near one, the chains
# agree; the usual limit is a few hundredths above one. The effective sample size (ESS) is the number of independent
# draws that would be as informative as yours. We compute both at several horsepowers and report the worst value.

# %%
worst = {}
for name, posterior in (("short", short), ("long", long)):
    drawn = [traces(posterior, horsepower) for horsepower in range(50, 250, 25)]
    worst[name] = max(float(arviz.rhat(each)) for each in drawn)
    ess = min(float(arviz.ess(each)) for each in drawn)
    print(f"{name:6} worst R-hat {worst[name]:.2f}   fewest effective draws {ess:.0f} of {drawn[0].size}")

# %% tags=["check"]
assert worst["short"] > 1.2
assert worst["long"] < 1.1

# %% [markdown]
# ## What you gain
#
# The band of the chains is narrow where there are many cars and wide where there are none. The band of one network has
# the same width everywhere: it shows the noise of the targets, but not that other curves would fit as well.

# %%
grid = np.linspace(30, 330, 120)
figure, axes = plt.subplots(1, 2, sharey=True)
for axis, (name, posterior) in zip(axes, {"one network": network, "long chains": long}.items(), strict=True):
    answer = posterior.predict(scaled(grid))
    low, high = answer.quantile(0.05)[:, 0], answer.quantile(0.95)[:, 0]
    axis.fill_between(grid, low, high, alpha=0.25, lw=0)
    for curve in answer.draw_mean[:: max(1, len(answer.draw_mean) // 15), :, 0]:
        axis.plot(grid, curve, lw=0.6, color="C0")
    axis.plot(power[train], miles[train], "k.", ms=2)
    axis.set(xlabel="horsepower", title=f"{name}: curves, and where nine in ten cars should be", ylim=(-15, 60))
    axis.title.set_fontsize(8)
axes[0].set_ylabel("miles per gallon")
plt.show()

# %%
COMMON, RARE = 100, 300
middle, far = (long.predict(scaled(np.array([h]))).epistemic_variance.sqrt().item() for h in (COMMON, RARE))
print(f"The curves of the chains differ by {middle:.1f} miles per gallon at {COMMON} horsepower", end="")
print(f" and by {far:.1f} at {RARE}.")
nll = {}
for name, posterior in {"one network": network, "short chains": short, "long chains": long}.items():
    nll[name] = -posterior.predict(x[test]).log_prob(y[test]).mean().item()
    print(f"{name:12} NLL on cars that no fit saw: {nll[name]:.3f}")

# %% tags=["check"]
assert far > 3 * middle
assert abs(nll["long chains"] - nll["one network"]) < 0.1

# %% [markdown]
# For cars like the training cars the scores are close, since the noise of the targets dominates them. For an unusual
# car, only the chains warn you that the prediction is uncertain.
#
# ## What next
#
# - Other kernels, schedules of the step size, and chains for a density of your own:
#   [dark knowledge](../families/dark-knowledge.md).
# - A prediction costs one forward pass for each draw: [distil the chains](7_distil_an_ensemble.md) into one network.
# - `python -m pipeline add` gives every data set a run of chains, and the report warns if they have not mixed.
