"""An object store whose listings do not show what was written last; whoever asks for a file by name gets it."""

from contextlib import contextmanager

import pytest


@contextmanager
def lagging_listings():
    """Listings show no file that is new in this block, as those of an object store that lag behind."""
    from aiobotocore.client import AioBaseClient
    from botocore.exceptions import ClientError

    call, hidden = AioBaseClient._make_api_call, set()

    async def lagging(self, operation, parameters):
        if operation in ("PutObject", "CopyObject") and not await is_there(self, parameters):
            hidden.add(parameters["Key"])
        if operation != "ListObjectsV2":
            return await call(self, operation, parameters)
        parameters = dict(parameters)
        separator, _ = parameters.pop("Delimiter", ""), parameters.pop("MaxKeys", None)
        answer = await call(self, operation, parameters)
        files = [file for file in answer.get("Contents", []) if file["Key"] not in hidden]
        return {**answer, **_by_folder(files, parameters["Prefix"], separator)}

    async def is_there(client, parameters):
        try:
            await call(client, "HeadObject", {name: parameters[name] for name in ("Bucket", "Key")})
        except ClientError:
            return False
        return True

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AioBaseClient, "_make_api_call", lagging)
        yield


def _by_folder(files, prefix, separator):
    """A listing: what is in folders as one entry for each folder, if there is a separator."""
    below = [file["Key"].removeprefix(prefix) for file in files]
    is_deep = [bool(separator) and separator in name for name in below]
    folders = {name.partition(separator)[0] for name, deep in zip(below, is_deep, strict=True) if deep}
    contents = [file for file, deep in zip(files, is_deep, strict=True) if not deep]
    prefixes = [{"Prefix": prefix + folder + separator} for folder in sorted(folders)]
    return {"Contents": contents, "CommonPrefixes": prefixes, "KeyCount": len(contents) + len(prefixes)}
