"""A bucket of S3 or a compatible store, through s3fs (brimful[s3]).

Credentials come from where the AWS tools look: the environment, ~/.aws, the machine's role.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator
from typing import Any

from brimful.adapters.objects.store import StoreFailed
from brimful.errors import WorldFailed
from brimful.language import say, verbatim

AT_ONCE = 1000  # keys per request (S3's limit)
THERE_ALREADY = {"PreconditionFailed", "ConditionalRequestConflict", "412", "409"}
NOT_THERE = {"NoSuchKey", "404"}


class Bucket:
    def __init__(self, uri: str, *, bucket: str, prefix: str, endpoint: str = "", region: str = "") -> None:
        try:
            from s3fs import S3FileSystem
        except ImportError as error:
            hint = say("adapters.no_s3fs_hint")
            raise WorldFailed(say("adapters.no_s3fs"), hint=hint, code="no_s3fs") from error
        self.uri, self._bucket, self._prefix = uri, bucket, f"{prefix}/" if prefix else ""
        client = {"region_name": region} if region else {}
        self._s3: Any = S3FileSystem(
            endpoint_url=endpoint or None,
            client_kwargs=client,
            config_kwargs={"connect_timeout": 10, "read_timeout": 60, "retries": {"max_attempts": 3}},
            use_listings_cache=False,
            max_concurrency=1,  # a block is one request; otherwise s3fs asks for its size first
            skip_instance_cache=True,
        )

    def put(self, key: str, data: bytes) -> bool:
        try:
            # Conditional: the first writer wins. A second writer of the same block has the same bytes.
            self._call("put_object", Key=self._prefix + key, Body=data, IfNoneMatch="*")
        except _Refused as refused:
            if refused.code in THERE_ALREADY:
                return False
            raise self._failed(refused.error) from refused.error
        return True

    def get(self, key: str) -> bytes | None:
        with self._failing():
            try:
                return bytes(self._s3.cat_file(f"{self._bucket}/{self._prefix}{key}"))
            except FileNotFoundError:
                return None

    def keys(self, under: str) -> dict[str, int]:
        found: dict[str, int] = {}
        more: dict[str, str] = {}
        while True:
            try:
                page = self._call("list_objects_v2", Prefix=self._prefix + under, **more)
            except _Refused as refused:
                raise self._failed(refused.error) from refused.error
            for each in page.get("Contents", ()):
                found[each["Key"].removeprefix(self._prefix)] = int(each["Size"])
            if not page.get("IsTruncated"):
                return found
            more = {"ContinuationToken": page["NextContinuationToken"]}

    def remove(self, keys: Iterable[str]) -> None:
        every = iter(keys)
        while batch := [{"Key": self._prefix + key} for key in itertools.islice(every, AT_ONCE)]:
            try:
                self._call("delete_objects", Delete={"Objects": batch, "Quiet": True})
            except _Refused as refused:
                raise self._failed(refused.error) from refused.error

    def _call(self, method: str, **arguments: object) -> dict[str, Any]:
        """One request; _Refused if the store answered with an error."""
        from botocore.exceptions import ClientError

        with self._failing():
            try:
                found: dict[str, Any] = self._s3.call_s3(method, Bucket=self._bucket, **arguments)
            except OSError as error:  # s3fs wraps the client's error in a builtin one
                if isinstance(error.__cause__, ClientError):
                    raise _Refused(error.__cause__) from error
                raise
            except ClientError as error:
                raise _Refused(error) from error
        return found

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            yield
        except (OSError, BotoCoreError, ClientError) as error:
            raise self._failed(error) from error

    def _failed(self, error: BaseException) -> StoreFailed:
        words = verbatim(str(error)[:300] or type(error).__name__)
        return StoreFailed(say("adapters.store_failed", uri=self.uri, error=words), code="store_failed")


class _Refused(Exception):
    def __init__(self, error: Any) -> None:  # noqa: ANN401 - botocore has no types
        super().__init__(str(error))
        self.error = error
        self.code = str(error.response.get("Error", {}).get("Code", ""))
