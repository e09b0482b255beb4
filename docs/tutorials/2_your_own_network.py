# %% [markdown]
# # Make your own trained network Bayesian
#
# At the end you have a posterior of a network that you trained yourself, and you have measured how much its
# probabilities improved.
#
# Needs `pip install '.[figures]'` and Fashion-MNIST: `apt-get install dataset-fashion-mnist`, or add the extra
# `data`, which fetches it.
#
# ## A network that is too sure
#
# We train for long on few images. The network then fits its training rows and becomes overconfident, as most networks
# in practice are.

# %%
import tempfile
from itertools import pairwise

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bdl_pipe

torch.manual_seed(0)
torch.set_num_threads(1)
fashion = bdl_pipe.load_dataset("fashion_mnist")


def tensors(rows, start, stop):
    images = torch.tensor(rows.inputs[start:stop]).float() / 255
    return images, torch.tensor(rows.targets[start:stop])


train = TensorDataset(*tensors(fashion.train, 0, 2000))
held_out = TensorDataset(*tensors(fashion.train, 2000, 3000))
x_test, y_test = tensors(fashion.test, 0, 2000)
loader = DataLoader(train, batch_size=64, shuffle=True)

# %%
model = nn.Sequential(
    *(nn.Conv2d(1, 16, 5, stride=2, padding=2), nn.ReLU()),
    *(nn.Conv2d(16, 32, 5, stride=2, padding=2), nn.ReLU()),
    nn.Flatten(),
    *(nn.Linear(32 * 7 * 7, 64), nn.ReLU()),
    nn.Linear(64, 10),
)
optimiser = torch.optim.Adam(model.parameters(), lr=2e-3)
for _ in range(40):
    for images, labels in loader:
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimiser.step()

# %% [markdown]
# ## One call for a posterior
#
# `bayesianise` takes the model and its loader. It copies the model, so that your model does not change. Laplace's
# approximation needs no training: it computes the curvature of the loss at the weights of the last layer. SWAG trains
# for a few more epochs and fits a Gaussian to the weights along the way.

# %%
posteriors = {
    "the network itself": bdl_pipe.bayesianise(model, "deterministic", loader),
    "Laplace": bdl_pipe.bayesianise(model, "kfac_laplace", loader),
    "SWAG": bdl_pipe.bayesianise(model, "swag", loader, epochs=2),
}

# %% [markdown]
# ## Is the posterior better?
#
# Compare the negative log-likelihood (NLL): it punishes wrong and overconfident probabilities. The calibration error
# compares the stated probabilities with the share of right answers.


# %%
def confidence_and_right(predictive):
    sure, chosen = predictive.mean.max(1)
    return sure.numpy(), (chosen == y_test).numpy()


def calibration_error(sure, right, bins=10):
    place = np.minimum((sure * bins).astype(int), bins - 1)
    gaps = [abs(sure[place == b].mean() - right[place == b].mean()) * (place == b).mean() for b in set(place)]
    return sum(gaps)


def report(name, predictive):
    sure, right = confidence_and_right(predictive)
    nll = -predictive.log_prob(y_test).mean()
    print(f"{name:32} right {right.mean():.1%}   claims {sure.mean():.1%}   NLL {nll:.3f}", end="")
    print(f"   calibration error {calibration_error(sure, right):.1%}")
    return nll


answers = {name: posterior.predict(x_test) for name, posterior in posteriors.items()}
nll = {name: report(name, answer) for name, answer in answers.items()}

# %% [markdown]
# Laplace's approximation removes most of the overconfidence, and needs only the training rows. If you have rows that
# neither the training nor the fit has used, `recalibrated` learns one temperature from them. The temperature helps
# most, and SWAG with a temperature gives better probabilities than the network with a temperature.

# %%
for name in list(posteriors):
    tempered = posteriors[name].recalibrated(DataLoader(held_out, batch_size=500))
    name = f"{name}, tempered"
    answers[name] = tempered.predict(x_test)
    nll[name] = report(name, answers[name])

# %% tags=["check"]
errors = {name: calibration_error(*confidence_and_right(answer)) for name, answer in answers.items()}
assert nll["Laplace"] < nll["SWAG"] < nll["the network itself"]
assert errors["Laplace"] < errors["the network itself"] / 2
assert nll["SWAG, tempered"] < nll["the network itself, tempered"] < nll["Laplace"]

# %% [markdown]
# ## See it
#
# Points below the diagonal are overconfident. The network is far below it; Laplace's approximation is closer to the
# diagonal, and SWAG with a temperature is on it.

# %%
figure, (left, right_axes) = plt.subplots(1, 2, width_ratios=(1, 1.3))
edges = np.linspace(0.3, 1, 8)
for name in ("the network itself", "Laplace", "SWAG", "SWAG, tempered"):
    sure, right = confidence_and_right(answers[name])
    inside = [(sure >= low) & (sure <= high) for low, high in pairwise(edges)]
    left.plot([sure[i].mean() for i in inside], [right[i].mean() for i in inside], "o-", ms=3, label=name)
left.plot([0.3, 1], [0.3, 1], "k:", lw=1)
left.set(xlabel="what it claims", ylabel="how often it is right", title="Claims and truth")
left.legend(fontsize=7)
right_axes.barh(list(nll), list(nll.values()), color=["C3", "C0", "C0", "C1", "C2", "C2"])
right_axes.invert_yaxis()
right_axes.set(xlabel="NLL on test images (lower is better)", title="Cost of its probabilities")
plt.show()

# %% [markdown]
# The posterior also shows which images it cannot classify reliably. Below are the test images on which the draws of
# SWAG disagree most, each with its true class: you would send these images to a person.

# %%
doubt = answers["SWAG"].mutual_information()
figure, axes = plt.subplots(1, 8, figsize=(7.2, 1.3))
for axis, row in zip(axes, doubt.topk(8).indices.tolist(), strict=True):
    axis.imshow(x_test[row, 0], cmap="gray_r")
    axis.set_xlabel(fashion.classes[y_test[row]], fontsize=7)
    axis.set(xticks=[], yticks=[])
figure.suptitle("The most doubtful images", fontsize=9)
plt.show()

# %%
sure, right = confidence_and_right(answers["SWAG"])
surest = doubt.argsort().numpy()[: len(doubt) * 8 // 10]
print(f"Without the most doubtful fifth, SWAG is right on {right[surest].mean():.1%} in place of {right.mean():.1%}.")

# %% tags=["check"]
assert right[surest].mean() > right.mean()

# %% [markdown]
# ## Save it
#
# `save` stores the posterior without the code of your model: pass the model to `load`.

# %%
with tempfile.TemporaryDirectory() as folder:
    posteriors["SWAG"].save(f"{folder}/mine")
    again = bdl_pipe.ModulePosterior.load(f"{folder}/mine", model)
    print("The same answers:", torch.equal(again.predict(x_test[:5]).mean, posteriors["SWAG"].predict(x_test[:5]).mean))

# %% [markdown]
# ## What next
#
# - Try `"g_vbll"` or `"ffg_u"` instead of `"swag"`: [all methods, and the needs of each](../your-own-model.md).
# - Predict images that show no clothes: [out of distribution](6_out_of_distribution.md).
# - Predict as fast as one network does: [distil the posterior](7_distil_an_ensemble.md).
