# %% [markdown]
# # From a table to a decision
#
# At the end you have a comparison of methods on a table of your own, and a decision rule for new rows that costs less
# than always choosing the likelier class.
#
# Needs a clone and `make install` (the extra `pipeline`).
#
# ## A table
#
# Each row is a tumour: thirty measurements of its cells, and the diagnosis. We write the last rows to a separate file;
# they play the part of later patients. The commands run in a copy of the project, so that your `params.yaml` does not
# change. In your own clone, type the commands after `$`.

# %%
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from scratch import project, run
from sklearn.datasets import load_breast_cancer

folder = project()
data = load_breast_cancer(as_frame=True)
table = data.frame.assign(diagnosis=data.target_names[data.target]).drop(columns="target")
table = table.sample(frac=1, random_state=0)
known, later = table.iloc[:400], table.iloc[400:]
known.to_csv(folder / "data/tumours.csv", index=False)
later.drop(columns="diagnosis").to_csv(folder / "later.csv", index=False)
print(known.iloc[:3, -4:])

# %% [markdown]
# ## Add it
#
# `add` reads the file, prints its columns, and adds a run of each method with hyperparameters for this number of rows.
# Without `--methods` you get all methods that suit the table.

# %%
methods = "linear boosting deterministic kfac_laplace g_vbll"
run(folder, f"python -m pipeline add data/tumours.csv --target diagnosis --methods {methods} --splits 2")

# %% [markdown]
# ## Run it
#
# `repro` runs every stage that is not up to date: if you run it again, it has nothing to do. The sentences above the
# table are the report's verdict; `report/index.html` has the table and its figures. Here we leave out the lines of
# progress.

# %%
hidden = ("started", "done,", "tracking page", "stages to run")
run(folder, "python -m pipeline repro -j 2", hide=hidden, BDL_TRACKING="off")

# %% [markdown]
# ## What does a mistake cost?
#
# The negative log-likelihood (NLL) is a general score. You have costs of your own: say that a missed tumour costs
# twenty times as much as a needless biopsy. Then you should order a biopsy if the probability of a malignant tumour is
# above one in twenty-one, since there the expected costs of the two mistakes are equal. The evaluation stores the
# predicted probabilities of all test rows, so that you can compute the cost of each method.

# %%
MISSED, NEEDLESS = 20, 1
threshold = NEEDLESS / (MISSED + NEEDLESS)


def cost(malignant, biopsy):
    """Mean cost of a patient."""
    return np.mean(MISSED * (malignant & ~biopsy) + NEEDLESS * (~malignant & biopsy))


costs = {}
for method in methods.split():
    rows = pd.read_parquet(folder / f"work/evaluate/tumours-{method}/predictions.parquet")
    malignant = rows["target"].to_numpy() == 1  # classes are in alphabetical order
    likelier, by_cost = (cost(malignant, rows["p_1"].to_numpy() > at) for at in (0.5, threshold))
    costs[method] = by_cost
    print(f"{method:14} cost a patient: {likelier:.3f} by the likelier class, {by_cost:.3f} by the threshold")
best = min(costs, key=costs.get)
print(f"The cheapest for you is {best}.")

# %% [markdown]
# ## Decide for new patients
#
# `predict` reads new rows in the format of your table and writes a file with their probabilities. Your threshold turns
# the probabilities into decisions.

# %%
run(folder, f"python -m pipeline predict tumours-{best} --input later.csv --output later.parquet")
answers = pd.read_parquet(folder / "later.parquet")
probability = answers["p_malignant"].to_numpy()
malignant = (later["diagnosis"] == "malignant").to_numpy()
for rule, at in {"the likelier class": 0.5, "the threshold of your costs": threshold}.items():
    biopsy = probability > at
    missed, needless = (malignant & ~biopsy).sum(), (~malignant & biopsy).sum()
    print(f"By {rule}: {missed} missed, {needless} needless biopsies, cost a patient {cost(malignant, biopsy):.3f}")

# %% tags=["check"]
assert cost(malignant, probability > threshold) <= cost(malignant, probability > 0.5)
assert sum(costs.values()) > 0

# %%
figure, (left, right) = plt.subplots(1, 2, width_ratios=(1.4, 1))
order = probability.argsort()
for value, colour, name in ((False, "C0", "benign"), (True, "C3", "malignant")):
    at = np.flatnonzero(malignant[order] == value)
    left.semilogy(at, probability[order][at], ".", color=colour, label=name)
left.axhline(threshold, color="k", lw=1, label="threshold of your costs")
left.axhline(0.5, color="0.6", lw=1, ls=":", label="the likelier class")
left.set(
    xlabel="new patients, in order",
    ylabel="probability of a malignant tumour",
    title="Above the line: a biopsy",
)
left.legend(fontsize=7)
thresholds = np.geomspace(0.002, 0.9, 60)
right.semilogx(thresholds, [cost(malignant, probability > at) for at in thresholds])
right.axvline(threshold, color="k", lw=1)
right.axvline(0.5, color="0.6", lw=1, ls=":")
right.set(xlabel="threshold", ylabel="cost a patient", title="What each threshold would have cost")
plt.show()

# %% [markdown]
# You fixed the threshold before you saw the patients: if the probabilities are calibrated, the threshold follows from
# your costs alone. The curve on the right shows the cost at every other threshold. If the probabilities are
# overconfident, the cheapest threshold is different, and you would need more labelled rows to find it.
#
# ## What next
#
# - All options of `add`, and how it treats dates, missing values and categories: [your data](../your-data.md).
# - The meaning of each figure of the report: [reading the report](../reading-the-report.md).
# - Better hyperparameters: [a search and a cluster](8_a_search_and_a_cluster.md).
# - The same without the pipeline: `BayesianClassifier("g_vbll").fit(X, y)`, in [scikit-learn estimators](../estimators.md).
