# %% [markdown]
# # A search and a cluster, on one machine
#
# At the end you have searched a method's hyperparameters on a Ray cluster, merged the best ones into `params.yaml`, and
# run the comparison on the same cluster, with the commands that you would use on many machines.
#
# Needs a clone and `make install` (the extra `pipeline`).
#
# ## A table and three methods
#
# The rows are patients with diabetes; the target is the progression of their illness. The commands run in a copy of the
# project. In your own clone, type the commands after `$`.

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
# On each machine of a cluster you start Ray once: `ray start --head --port=6379` on the first machine, and `ray start
# --address=FIRST:6379` on the others. This tutorial has one machine: `ray_head` starts Ray there and stops it when this
# script ends. In a terminal, `ray stop` stops Ray.

# %%
address = ray_head()
print("The cluster is up.")

# %% [markdown]
# ## A search
#
# A command needs only `RAY_ADDRESS` to use the cluster. Each method declares its hyperparameters; Optuna proposes
# values, and Ray Tune stops weak trials early. A trial is scored by the negative log-likelihood (NLL) of validation
# rows: no test row is read. The first trial has the present hyperparameters, so that the best trial scores at least as
# well as they do.

# %%
boxes = ("╭", "│", "├", "╰", "View detailed")  # of Ray Tune
run(folder, "python -m pipeline tune vbll --dataset diabetes --samples 10 --apply", hide=boxes, RAY_ADDRESS=address)

# %% [markdown]
# Ctrl-C stops a search; the same command with `--resume` continues it. `--apply` merged the best hyperparameters into
# `params.yaml`; without `--apply` the search only writes an overlay, which you merge yourself.
#
# Every trial is a run in MLflow. `make ui` opens MLflow's page, and `mlflow` returns the same runs as a table:

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
print(f"The worst trial has {nll.max():.3f}.")

# %% tags=["check"]
assert nll.min() <= nll[0]
assert len(searched) == 3

# %% [markdown]
# ## The comparison, on the cluster
#
# The search changed the hyperparameters of one run, and `repro` runs the stages that are now out of date. The cluster
# does the work, and the results are written here. They are bit for bit the results that you would get without it, and
# `params.yaml` never says where work runs. Here we leave out the lines of progress.

# %%
hidden = ("started", "done,", "tracking page", "stages to run")
run(folder, "python -m pipeline repro -j 2", hide=hidden, RAY_ADDRESS=address)
run(folder, "python -m pipeline repro -j 2", hide=("tracking page",), RAY_ADDRESS=address)

# %% [markdown]
# The second `repro` had nothing to do. Read the verdict, too: after its search, a method may still be worse than
# another method.
#
# ## What next
#
# - A real cluster, by Kubernetes, AWS, ssh or Slurm, and a GPU for each task: [running](../running.md).
# - A cluster that you can reach through one port only: [as a Ray job](../jobs.md).
# - Population-based training, and grids with a figure: [searching](../searching.md).
# - A search for all methods: `python -m pipeline tune all --dataset diabetes --samples 16 --apply`.
