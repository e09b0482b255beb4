# %% [markdown]
# # Coresets that you can look at
#
# At the end you have a hundred learned images that replace thousands, pictures of how they were learned, and a
# posterior that is fitted to them alone.
#
# Needs `pip install '.[figures]'` and Fashion-MNIST: `apt-get install dataset-fashion-mnist`, or add the extra
# `data`, which fetches it.
#
# ## Learn ten images a class
#
# `vbpc` learns images and soft labels: a posterior that is fitted to them predicts the whole data set. An estimator
# does this in one call. `pace` shortens all training, so that this page takes seconds.

# %%
import time

import matplotlib.pyplot as plt
import numpy as np
import torch

from bdl_pipe import BayesianClassifier, load_dataset

torch.set_num_threads(1)
fashion = load_dataset("fashion_mnist")
images, labels = fashion.train.inputs[:3000], fashion.train.targets[:3000]
test_images, test_labels = fashion.test.inputs[:1000], fashion.test.targets[:1000]

# %%
models, seconds = {}, {}
for steps in (1, 30, 120):
    start = time.process_time()
    models[steps] = BayesianClassifier("vbpc", pace=0.25, upstream={"vbpc": {"coreset": {"steps": steps}}})
    models[steps].fit(images, labels)
    seconds[steps] = time.process_time() - start
random = BayesianClassifier("random_coreset", pace=0.25).fit(images, labels)

# %% [markdown]
# ## Look at them
#
# `made_from_` holds the results from which an estimator was fitted: here the coreset, with its images in pixel values
# (`raw`) and its labels. After one step the images still look like the training images from which they start. Later
# they keep their outlines, and the changes are in the shades and in the background, where a network uses them although
# you hardly see them.


# %%
def coreset(model, run="vbpc"):
    (state,) = model.made_from_[run]
    return state.tensors


def sheet(tensors, classes, count):
    raw, of = tensors["raw"].numpy()[:, 0].clip(0, 1), tensors["classes"].numpy()
    return np.vstack([np.hstack(raw[of == label][:count]) for label in classes])


figure, axes = plt.subplots(1, 3, figsize=(7.2, 3.2))
for axis, (steps, model) in zip(axes, models.items(), strict=True):
    axis.imshow(sheet(coreset(model), range(0, 10, 2), 4), cmap="gray_r")
    axis.set(xticks=[], yticks=[], title=f"{steps} step{'s' * (steps > 1)}")
plt.show()

# %% [markdown]
# The labels are learned, too. Each row is a learned image, and each column a class. The dark diagonal is an image's own
# class; the values for the other classes differ from image to image.

# %%
learned = coreset(models[120])
order = learned["classes"].argsort(stable=True)
limit = learned["labels"].abs().quantile(0.98).item()
figure, axis = plt.subplots(figsize=(5, 3.4))
shown = axis.imshow(
    learned["labels"][order], aspect="auto", cmap="RdBu_r", vmin=-limit, vmax=limit, interpolation="nearest"
)
axis.set_xticks(range(10), fashion.classes, rotation=40, ha="right", fontsize=7)
axis.set(ylabel="learned image", title="Learned labels")
figure.colorbar(shown)
plt.show()

# %% [markdown]
# ## What they are worth
#
# Every model below is fitted to a hundred images. The random coreset holds training images drawn at random: a learned
# coreset must do better.

# %%
scores = {"random images": random} | {f"learned, {steps} steps": model for steps, model in models.items()}
right, nll = {}, {}
for name, model in scores.items():
    right[name] = model.score(test_images, test_labels)
    nll[name] = -model.log_prob(test_images, test_labels).mean()
    print(f"{name:20} right {right[name]:.1%}   NLL {nll[name]:.3f}")
print(f"The longest took {seconds[120]:.0f} s of one core. The coreset is {len(images) // len(learned['raw'])} times")
print("smaller than the rows that it was learned from.")

# %% tags=["check"]
best = "learned, 120 steps"
assert right[best] > right["random images"] + 0.03
assert nll[best] < nll["learned, 30 steps"] < nll["learned, 1 steps"]

# %%
figure, (left, right_axes) = plt.subplots(1, 2, sharey=True, figsize=(7.2, 2.2))
left.barh(list(right), list(right.values()), color=["0.6", "C0", "C0", "C1"])
left.set(xlabel="share of right answers", title="Accuracy", xlim=(0.5, 1))
right_axes.barh(list(nll), list(nll.values()), color=["0.6", "C0", "C0", "C1"])
right_axes.set(xlabel="NLL (lower is better)", title="Probabilities")
left.invert_yaxis()
plt.show()

# %% [markdown]
# Given the learned images, the posterior over the last layer is exact: it has a closed form, so that nothing is left to
# tune.
#
# ## What next
#
# - More steps on all rows: the run in `params.yaml`, with its [results](../results.md).
# - The rivals of `vbpc`, and the ways to predict from any coreset: [pseudo-coresets](../families/coresets.md).
# - `python -m pipeline export coreset RUN --to DIR` writes a folder with pictures, tensors and a training script that
#   needs nothing of this project.
