"""The logged posterior: the same figures through MLflow, and over HTTP, as from the library."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from fitted_cases import FEATURES, student

from bdl_pipe import summary
from bdl_pipe.registry import load_predictor
from bdl_pipe.seeds import Seed
from pipeline.tracking import model

ROOT = Path(__file__).parents[2]
CASES = [("classification", False), ("classification", True), ("regression", False)]


def case(folder, task, images):
    """(saved model, rows to send, columns that the library itself gives)."""
    place, saved = student(folder / "student", task, images), folder / "saved"
    model.save(place, saved)
    random = np.random.default_rng(2)
    rows = random.integers(0, 256, (3, 1, 4, 4), dtype=np.uint8) if images else random.normal(20, 9, (3, 2))
    schema = json.loads((place / "schema.json").read_text())
    direct = load_predictor(place).predict(rows, rng=Seed(0))
    return saved, rows, summary.columns(direct, schema["classes"] or schema["targets"])


def same(made, expected):
    assert list(made.columns) == list(expected)
    for name, values in expected.items():
        if name == "predicted":
            assert list(made[name]) == list(values)
        else:
            assert np.allclose(made[name], values, rtol=1e-5, atol=1e-7), name


@pytest.mark.parametrize(("task", "images"), CASES)
def test_a_loaded_model_predicts_what_the_posterior_does(tmp_path, task, images):
    import mlflow

    saved, rows, expected = case(tmp_path, task, images)
    loaded = mlflow.pyfunc.load_model(str(saved))
    same(loaded.predict(rows if images else pd.DataFrame(rows, columns=FEATURES)), expected)


def test_nothing_is_pickled(tmp_path):
    saved, _, _ = case(tmp_path, "classification", False)
    kinds = {path.suffix for path in saved.rglob("*") if path.is_file()}
    assert kinds <= {"", ".json", ".py", ".safetensors", ".txt", ".yaml"}


@pytest.mark.slow
@pytest.mark.parametrize(("task", "images"), CASES[1:])
def test_a_served_model_answers_what_the_posterior_does(tmp_path, task, images):
    saved, rows, expected = case(tmp_path, task, images)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "models", "serve", "-m", str(saved), "--env-manager", "local"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    places = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    env = {**os.environ, "PYTHONPATH": places, "PATH": path, "OMP_NUM_THREADS": "1", "MLFLOW_DISABLE_TELEMETRY": "true"}
    log = open(tmp_path / "log", "w")  # noqa: SIM115
    server = subprocess.Popen(command, cwd=tmp_path, env=env, start_new_session=True, stdout=log, stderr=log)
    try:
        table = {"columns": FEATURES, "data": rows.tolist()}
        body = {"inputs": rows.tolist()} if images else {"dataframe_split": table}
        answer = ask(port, body, server, tmp_path / "log")
        same(pd.DataFrame(answer["predictions"]), expected)
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(timeout=30)
        log.close()


def ask(port, body, server, log):
    """POST once the server is up."""
    end = time.monotonic() + 90
    while True:
        assert server.poll() is None and time.monotonic() < end, log.read_text()[-3000:]
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/ping", timeout=5).close()
            break
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.5)
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/invocations", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as reply:
        return json.load(reply)
