"""Buckets of S3 on this machine, which moto's server keeps."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

IDENTIFIER, SECRET = "AKIAOFATESTMACHINE99", "pSecretOfATest/wJalrXUtnFEMI"
KEYS: Final = {"AWS_ACCESS_KEY_ID": IDENTIFIER, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_DEFAULT_REGION": "us-east-1"}


@contextmanager
def served(bucket: str) -> Iterator[tuple[dict[str, str], Any]]:
    """Serve an empty bucket; yield the environment by which a process finds the server, and a client of boto3."""
    import boto3
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # Otherwise the server prints a line for each request.
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    try:
        keys = {"aws_access_key_id": IDENTIFIER, "aws_secret_access_key": SECRET, "region_name": "us-east-1"}
        client: Any = boto3.client("s3", endpoint_url=f"http://{host}:{port}", **keys)
        client.create_bucket(Bucket=bucket)
        yield {**KEYS, "AWS_ENDPOINT_URL": f"http://{host}:{port}"}, client
    finally:
        server.stop()


def files(client: Any, bucket: str) -> dict[str, bytes]:
    """Read every file of a bucket: name -> content."""
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket)
    names = [entry["Key"] for page in pages for entry in page.get("Contents", ())]
    return {name: client.get_object(Bucket=bucket, Key=name)["Body"].read() for name in names}
