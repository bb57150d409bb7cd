"""A real S3 server of our own, on loopback, in a folder: SeaweedFS from PyPI."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.conftest import missing
from tests.patience import PATIENCE_S

KEY, SECRET = "lab", "lab-secret"  # of a server that lives as long as a test
BUCKET = "checkpoints"
# Whoever asks for the role gets credentials that expire, with a session token that the server checks.
ROLE = "arn:aws:iam::000000000000:role/Carrier"
ANYTHING = {"Effect": "Allow", "Action": ["s3:*"], "Resource": ["*"]}
ANYBODY = {"Effect": "Allow", "Principal": {"AWS": "*"}, "Action": ["sts:AssumeRole"]}
IAM: dict[str, Any] = {
    "sts": {"tokenDuration": "1h", "maxSessionLength": "12h", "issuer": "lab"},
    "policy": {"defaultEffect": "Deny", "storeType": "memory"},
    "providers": [],
    "roles": [
        {
            "roleName": "Carrier",
            "roleArn": ROLE,
            "trustPolicy": {"Version": "2012-10-17", "Statement": [ANYBODY]},
            "attachedPolicies": ["Carry"],
        }
    ],
    "policies": [{"name": "Carry", "document": {"Version": "2012-10-17", "Statement": [ANYTHING]}}],
}


@dataclass(frozen=True)
class S3Lab:
    port: int

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def uri(self, prefix: str) -> str:
        return f"s3://{BUCKET}/{prefix}?endpoint={self.endpoint}&region=us-east-1"

    @property
    def env(self) -> dict[str, str]:
        return {
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def short_lived(self) -> dict[str, str]:
        """The environment of credentials that expire: they are worth nothing without their token."""
        import botocore.session

        client = botocore.session.get_session().create_client(
            "sts",
            endpoint_url=self.endpoint,
            region_name="us-east-1",
            aws_access_key_id=KEY,
            aws_secret_access_key=SECRET,
        )
        made = client.assume_role(RoleArn=ROLE, RoleSessionName="lease", DurationSeconds=900)["Credentials"]
        return {
            **self.env,
            "AWS_ACCESS_KEY_ID": made["AccessKeyId"],
            "AWS_SECRET_ACCESS_KEY": made["SecretAccessKey"],
            "AWS_SESSION_TOKEN": made["SessionToken"],
        }


def _ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


@contextlib.contextmanager
def s3_lab(folder: Path) -> Iterator[S3Lab]:
    weed = shutil.which("weed", path=os.pathsep.join([str(Path(sys.executable).parent), os.defpath]))
    if weed is None:
        missing("SeaweedFS", "tools/setup.sh engines")
    (folder / "data").mkdir(parents=True)
    identity = {"name": "lab", "credentials": [{"accessKey": KEY, "secretKey": SECRET}], "actions": ["Admin"]}
    (folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
    key = base64.b64encode(os.urandom(32)).decode()
    (folder / "iam.json").write_text(json.dumps({**IAM, "sts": {**IAM["sts"], "signingKey": key}}))
    names = ("master", "volume", "filer", "s3")
    ports = _ports(2 * len(names))
    given = [f"-{name}.port={ports[i]}" for i, name in enumerate(names)]
    given += [f"-{name}.port.grpc={ports[len(names) + i]}" for i, name in enumerate(names)]
    command = [weed, "server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-filer", "-s3", *given]
    command += [f"-dir={folder / 'data'}", "-volume.max=8", "-master.volumeSizeLimitMB=256"]
    command += [f"-s3.config={folder / 's3.json'}", f"-s3.iam.config={folder / 'iam.json'}"]
    command += [f"-filer.localSocket={folder / 'filer.sock'}"]
    lab = S3Lab(ports[3])
    with (folder / "weed.log").open("wb") as log:
        server = subprocess.Popen(command, cwd=folder, stdout=log, stderr=subprocess.STDOUT)
        try:
            _make_bucket(lab, server, folder)
            yield lab
        finally:
            server.kill()
            server.wait()


def _make_bucket(lab: S3Lab, server: subprocess.Popen[bytes], folder: Path) -> None:
    import botocore.session
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError

    once = Config(retries={"max_attempts": 1}, connect_timeout=5, read_timeout=10)
    until_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < until_s:
        assert server.poll() is None, (folder / "weed.log").read_text()[-2000:]
        try:
            client = botocore.session.get_session().create_client(
                "s3",
                endpoint_url=lab.endpoint,
                region_name="us-east-1",
                aws_access_key_id=KEY,
                aws_secret_access_key=SECRET,
                config=once,
            )
            client.create_bucket(Bucket=BUCKET)
            client.put_object(Bucket=BUCKET, Key="ready", Body=b"yes")
        except (BotoCoreError, ClientError):
            time.sleep(0.2)
        else:
            return
    raise AssertionError((folder / "weed.log").read_text()[-2000:])
