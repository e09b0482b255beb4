# %% [markdown]
# # What Markov chains add, and how to see whether they have mixed
#
# At the end you have chains over the weights of your network, their traces and R-hat, and a band that is wide where
# your data say nothing.
#
# Needs `pip install '.[data,figures]' 'arviz<1'` (the extra `pipeline` has all of them).
#
# ## One network, one curve
#
# The data are cars: how far does a car go on a gallon, given its horsepower? A network gives one curve. You cannot
# see which other curves would fit as well.

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
# `sgmcmc` runs several chains of stochastic-gradient Hamiltonian Monte Carlo. Each chain draws networks in proportion
# to how well they explain the rows. Here are four short chains and four long ones.

# %%
CHAINS = 4
short = bdl_pipe.bayesianise(model, "sgmcmc", loader, epochs=40, chains=CHAINS)
kept = {"steps": 6000, "burn_in": 1200, "every": 48}  # drop the first steps, then keep each 48th network
long = bdl_pipe.bayesianise(model, "sgmcmc", loader, epochs=2000, chains=CHAINS, lr=3e-2, config={"thinning": kept})
print("short:", *short.notes)
print("long: ", *(long.notes or ["no note"]))

# %% [markdown]
# ## Traces
#
# The weights of a network are no good to look at: two networks with their hidden units swapped are the same function.
# Look at what the chains predict. Below is the prediction for one strong car, draw by draw. Chains that have mixed
# look alike: no chain stays by itself, and none drifts.


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
# R-hat compares how far the chains are apart with how far each moves by itself. Near one they cannot be told apart;
# the usual limit is a few hundredths above one. The effective sample size (ESS) says how many independent draws yours
# are worth. Both are taken at each of several horsepowers, and the worst counts.

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
# The band of the chains is narrow where there are many cars and wide where there are none. The band of one network
# has one width everywhere: it is the noise of the targets, and knows nothing of the curves that fit as well.

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
# On cars like those in training the scores are close: the noise of the targets is most of it. What the chains add is
# the warning that you need for a car that is unlike them.
#
# ## What next
#
# - Other kernels, schedules of the step size, and chains of a density of your own:
#   [dark knowledge](../families/dark-knowledge.md).
# - Chains cost as many forward passes as they have draws: [distil them](7_distil_an_ensemble.md).
# - `python -m pipeline add` gives every data set a run of chains, and the report warns where they have not mixed.
