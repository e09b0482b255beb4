# %% [markdown]
# # A search and a cluster, on one machine
#
# At the end you have searched a method's hyperparameters on a Ray cluster, merged the winner, and run the comparison
# on the same cluster, with the commands that you would give on many machines.
#
# Needs a clone and `make install` (the extra `pipeline`).
#
# ## A table and three methods
#
# The rows are patients with diabetes; the target is the progression of their illness. The commands run in a copy of
# the project. In your clone, type what stands behind `$`.

# %%
import matplotlib.pyplot as plt
import mlflow
from scratch import project, ray_head, run
from sklearn.datasets import load_diabetes

folder = project()
load_diabetes(as_frame=True).frame.rename(columns={"target": "progression"}).to_csv(
    folder / "data/diabetes.csv", index=False
)
methods = "--methods vbll boosting linear"
run(folder, f"python -m pipeline add data/diabetes.csv --target progression {methods} --splits 2")

# %% [markdown]
# ## A cluster of one
#
# On each machine of a cluster you start Ray once: `ray start --head --port=6379` on the first, and `ray start
# --address=FIRST:6379` on the others. Here the first is all there is; `ray_head` starts it, and ends it with this
# script. In a terminal, `ray stop` ends what you have started.

# %%
address = ray_head()
print("The cluster is up.")

# %% [markdown]
# ## A search
#
# `RAY_ADDRESS` is all that a command needs to know. Each method declares what there is to search; Optuna proposes
# hyperparameters, and Ray Tune ends weak trials early. A trial is scored by the negative log-likelihood (NLL) of
# validation rows: no test row is read. The first trial has the hyperparameters in force, so that the winner is at
# least as good as they are.

# %%
boxes = ("╭", "│", "├", "╰", "View detailed")  # of Ray Tune
run(folder, "python -m pipeline tune vbll --dataset diabetes --samples 10 --apply", hide=boxes, RAY_ADDRESS=address)

# %% [markdown]
# Ctrl-C stops a search; the same command with `--resume` goes on with it. `--apply` has merged the winner into
# `params.yaml`; without it you get the overlay alone, and merge it yourself.
#
# Every trial is a run in MLflow. `make ui` shows the page, and `mlflow` gives you the same as a table:

# %%
mlflow.set_tracking_uri(f"sqlite:///{folder}/mlruns/mlflow.db")
trials = mlflow.search_runs(search_all_experiments=True).dropna(subset="metrics.validation/nll")
trials = trials.sort_values("start_time").reset_index(drop=True)
nll = trials["metrics.validation/nll"]
searched = [column for column in trials if column.startswith("params.")]
figure, axes = plt.subplots(1, 1 + len(searched), sharey=True, figsize=(7.2, 2.6))
axes[0].plot(nll, "o", ms=4)
axes[0].plot(nll.cummin(), "C1", drawstyle="steps-post", label="best so far")
axes[0].set(xlabel="trial", ylabel="NLL of validation rows", title="As they came")
axes[0].legend(fontsize=7)
for axis, column in zip(axes[1:], searched, strict=True):
    axis.semilogx(trials[column].astype(float), nll, "o", ms=4)
    axis.semilogx(float(trials[column][nll.idxmin()]), nll.min(), "o", ms=9, mfc="none", mec="C1")
    name = column.removeprefix("params.")
    axis.set(xlabel="value", title=name)
    axis.title.set_fontsize(7)
plt.show()

# %%
print(f"The hyperparameters in force had an NLL of {nll[0]:.3f}; the best trial has {nll.min():.3f}.")
print(f"The worst had {nll.max():.3f}: a search is also a picture of what to stay away from.")

# %% tags=["check"]
assert nll.min() <= nll[0]
assert len(searched) == 3

# %% [markdown]
# ## The comparison, on the cluster
#
# The winner has changed the hyperparameters of one run, and `repro` runs what that makes out of date. The work goes
# to the cluster, the results come back here, and they are the results that you would get without it, bit for bit:
# where work runs is never a part of `params.yaml`. Here the lines of progress are left out.

# %%
hidden = ("started", "done,", "tracking page", "stages to run")
run(folder, "python -m pipeline repro -j 2", hide=hidden, RAY_ADDRESS=address)
run(folder, "python -m pipeline repro -j 2", hide=("tracking page",), RAY_ADDRESS=address)

# %% [markdown]
# The second `repro` had nothing to do. Read the verdict, too: a search makes a method as good as it can be, and another
# one may still be the one to take.
#
# ## What next
#
# - A real cluster, by Kubernetes, AWS, ssh or Slurm; a GPU a task: [running](../running.md).
# - A cluster of which you reach one port only: [as a Ray job](../jobs.md).
# - Population-based training, and grids with a figure: [searching](../searching.md).
# - Not only on one method: `python -m pipeline tune all --dataset diabetes --samples 16 --apply`.
