"""What is said of a store that fails: one line, with the cure and no credential."""

import os
import sys
from pathlib import Path

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError, NoCredentialsError

from bdl_pipe.errors import UserError
from pipeline.core import object_store

SECRET = "wJalrXUtnFEMI/K7MDENG"
ENVIRONMENT = {
    "AWS_SECRET_ACCESS_KEY": SECRET,
    "MLFLOW_TRACKING_PASSWORD": "correct horse",
    "AWS_SHARED_CREDENTIALS_FILE": "/home/me/.aws/credentials",
    "TOKENIZERS_PARALLELISM": "false",
}


def test_credentials_are_taken_out_of_a_text_and_nothing_else_is() -> None:
    text = f"false: {SECRET} and correct horse of /home/me/.aws/credentials at https://me:pass@host/x, not of option-1"
    hidden = object_store.hide(text, ("option-1", "odd", "y"), ENVIRONMENT)
    assert hidden == "false: *** and *** of /home/me/.aws/credentials at https://host/x, not of ***"
    assert object_store.hide("of AKIAOFATESTMACHINE99/x", (), {}) == "of ***/x", "whoever's it is"
    assert object_store.hide(text, (), {}) == text.replace("me:pass@", ""), "the environment's are what it looks for"


SLOW = """
import time
time.sleep(2)  # to import a client on a busy machine, which says nothing of the store
with object_store.limited(1.0):
    try:
        time.sleep(60)
    except BaseException:
        pass
"""


def answered(code: str) -> Exception:
    return ClientError({"Error": {"Code": code, "Message": f"of {SECRET}"}}, "PutObject")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (answered("AccessDenied"), "it refuses these credentials (AccessDenied); give them the right"),
        (answered("InvalidAccessKeyId"), "it refuses these credentials (InvalidAccessKeyId)"),
        (answered("NoSuchBucket"), "there is no such bucket or folder; make it"),
        (OSError("of 'b': AWS Error ACCESS_DENIED during PutObject"), "it refuses these credentials (ACCESS_DENIED)"),
        (OSError("When: AWS Error UNKNOWN (HTTP status 403) during X"), "it refuses these credentials (403)"),
        (OSError("When: AWS Error NETWORK_CONNECTION during HeadBucket"), "nobody answers there"),
        (OSError("When: AWS Error NO_SUCH_BUCKET during X"), "there is no such bucket"),
        (OSError("Bucket 'b' not found. To create buckets"), "there is no such bucket"),
        (OSError(30, "Read-only file system"), "its file system is mounted for reading only; mount it for writing"),
        (PermissionError("denied"), "it refuses these credentials (permission denied)"),
        (NoCredentialsError(), "there are no credentials; export AWS_ACCESS_KEY_ID"),
        (EndpointConnectionError(endpoint_url="http://x"), "nobody answers there; correct its endpoint"),
        (ValueError(f"odd: {SECRET}\nand more"), "ValueError: odd: ***"),
    ],
)
def test_each_failure_has_its_line(error: Exception, said: str) -> None:
    try:
        raise OSError("of another library") from error
    except OSError as outer:
        found = object_store.reason(error, (SECRET,))
        wrapped = object_store.reason(outer, (SECRET,))
    assert found.startswith(said) and "\n" not in found and SECRET not in found
    assert wrapped == found or isinstance(error, ValueError), "also behind the error of a library between"


def test_a_probe_ends_in_time_and_says_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    object_store.probe("this", "BDL_X=y", "unset BDL_X")  # the poem of Python, which ends well
    with pytest.raises(UserError, match=r"^BDL_X=y: .*No module named nothing_there, or unset BDL_X$"):
        object_store.probe("nothing_there", "BDL_X=y", "unset BDL_X")
    (tmp_path / "imports.py").write_text("import time\ntime.sleep(60)\n")
    (tmp_path / "waits.py").write_text(f"from pipeline.core import object_store\n{SLOW}")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(tmp_path), *sys.path)))
    with pytest.raises(UserError, match=r"does not answer within 1 s; correct its endpoint, or .*, or unset BDL_X$"):
        object_store.probe("waits", "BDL_X=y", "unset BDL_X")
    monkeypatch.setattr(object_store, "_START_SECONDS", 1.0)
    monkeypatch.setattr(object_store, "_PROBE_SECONDS", 0.0)
    with pytest.raises(UserError, match="does not start within 1 s; try again when this machine is less busy"):
        object_store.probe("imports", "BDL_X=y", "unset BDL_X")
