# %% [markdown]
# # Detect images of a kind that the network has never seen
#
# At the end you have a classifier of clothes, three scores of whether an image shows clothing at all, and a figure of
# how well each score detects other images.
#
# Needs `pip install '.[figures,data]'`: these extras provide Fashion-MNIST and the handwritten digits.
#
# ## Clothes to learn, digits to detect
#
# A classifier of clothes predicts a kind of clothing for every image, even for an image of a digit. You want a score
# that is low for clothes and high for everything else. No digit is used in training.

# %%
import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bdl_pipe

torch.manual_seed(0)
torch.set_num_threads(1)
fashion, digits = bdl_pipe.load_dataset("fashion_mnist"), bdl_pipe.load_dataset("mnist5k")


def pixels(images):
    return torch.tensor(images).float() / 255


train = TensorDataset(pixels(fashion.train.inputs[:5000]), torch.tensor(fashion.train.targets[:5000]))
clothes, labels = pixels(fashion.test.inputs[:1500]), torch.tensor(fashion.test.targets[:1500])
strange = pixels(digits.train.inputs[np.random.default_rng(0).permutation(5000)[:1500]])
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
for _ in range(5):
    for images, classes in loader:
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(images), classes).backward()
        optimiser.step()

# %% [markdown]
# ## Three scores
#
# - **Is the network unsure?** The entropy of the class probabilities. Every network has this score.
# - **Do the draws disagree?** The mutual information between the class and the draw. It needs a posterior with draws:
#   we use SWAG.
# - **Is the image unlike the training images?** The density of the network's features. It needs a model of the
#   features: we use the generative last layer G-VBLL, which returns the density as `scores["refit_density"]`.

# %%
plain = bdl_pipe.bayesianise(model, "deterministic", loader)
swag = bdl_pipe.bayesianise(model, "swag", loader, epochs=3)
generative = bdl_pipe.bayesianise(model, "g_vbll", loader, epochs=3)

# %% [markdown]
# `scores` are high where an image looks familiar. We change their sign, so that a high score means unfamiliar.


# %%
def scores(images):
    of_swag, of_generative = swag.predict(images), generative.predict(images)
    return {
        "entropy of one network": plain.predict(images).entropy(),
        "entropy of SWAG": of_swag.entropy(),
        "disagreement of SWAG's draws": of_swag.mutual_information(),
        "density of features (G-VBLL)": -of_generative.scores["refit_density"],
    }


inside, outside = scores(clothes), scores(strange)

# %% [markdown]
# ## How well does each score detect digits?
#
# The area under the ROC curve (AUROC) is the probability that a random digit has a higher score than a random piece of
# clothing; guessing gives a half. The second figure is closer to use: choose the threshold that flags one piece of
# clothing in twenty, and count the digits that it flags.

# %%
auroc, caught = {}, {}
for name in inside:
    both = torch.cat([inside[name], outside[name]]).numpy()
    auroc[name] = roc_auc_score(np.repeat([0, 1], [len(clothes), len(strange)]), both)
    caught[name] = (outside[name] > inside[name].quantile(0.95)).float().mean().item()
    print(f"{name:30} AUROC {auroc[name]:.3f}   finds {caught[name]:.0%} of the digits")

# %% tags=["check"]
assert auroc["density of features (G-VBLL)"] > auroc["disagreement of SWAG's draws"] > auroc["entropy of one network"]
assert caught["density of features (G-VBLL)"] == max(caught.values())

# %% [markdown]
# ## See it
#
# One network is sure of many digits: its two histograms overlap. The density of the features separates digits best,
# since it measures whether an image is like the training images, and not whether two classes are hard to tell apart.

# %%
figure, axes = plt.subplots(1, 3, figsize=(7.2, 2.4), sharey=True)
shown = [name for name in inside if name != "entropy of SWAG"]
for axis, name in zip(axes, shown, strict=True):
    ranks = torch.cat([inside[name], outside[name]]).argsort().argsort().numpy() / (2 * len(clothes))
    axis.hist(ranks[: len(clothes)], bins=20, range=(0, 1), alpha=0.7, label="clothes")
    axis.hist(ranks[len(clothes) :], bins=20, range=(0, 1), alpha=0.7, label="digits")
    axis.set(xlabel="rank of the score", title=name)
    axis.title.set_fontsize(8)
axes[0].set_ylabel("images")
axes[0].legend(fontsize=7)
plt.show()

# %% [markdown]
# The plain network is most certain of these digits: it is nearly sure of the kind of clothing below each digit.

# %%
answers = plain.predict(strange).mean
fooled = answers.max(1).values.topk(8).indices.tolist()
figure, axes = plt.subplots(1, 8, figsize=(7.2, 1.3))
for axis, row in zip(axes, fooled, strict=True):
    axis.imshow(strange[row, 0], cmap="gray_r")
    axis.set_xlabel(fashion.classes[answers[row].argmax()], fontsize=7)
    axis.set(xticks=[], yticks=[])
figure.suptitle("Digits that one network is sure of", fontsize=9)
plt.show()

# %%
alarm = inside["density of features (G-VBLL)"].quantile(0.95)
found = (outside["density of features (G-VBLL)"][fooled] > alarm).sum().item()
right = (generative.predict(clothes).mean.argmax(1) == labels).float().mean().item()
print(f"The least certain of these answers has a probability of {answers[fooled].max(1).values.min():.4f}.")
print(f"The density of features finds {found} of these {len(fooled)}.")
print(f"G-VBLL is right on {right:.1%} of the clothes: the alarm costs no second network.")

# %% [markdown]
# ## What next
#
# - Other sets, such as noise or classes that you hold out: `ood` and `held_out` in [your data](../your-data.md).
# - A score of your own, in one file: [your score](../your-score.md).
# - The scores of all methods on the same sets: [reading the report](../reading-the-report.md).
