"""An object store whose listings do not show what was written last; whoever asks for a file by name gets it."""

from contextlib import contextmanager

import pytest


@contextmanager
def lagging_listings():
    """Listings show no file that is new in this block, as those of an object store that lag behind."""
    from s3fs import S3FileSystem

    call, hidden = S3FileSystem._call_s3, set()

    async def lagging(self, method, *arguments, **options):
        if method in ("put_object", "copy_object") and not await is_there(self, options):
            hidden.add(options["Key"])
        if method != "list_objects_v2":
            return await call(self, method, *arguments, **options)
        separator, _ = options.pop("Delimiter", ""), options.pop("MaxKeys", None)
        answer = await call(self, method, *arguments, **options)
        files = [file for file in answer.get("Contents", []) if file["Key"] not in hidden]
        return {**answer, **_by_folder(files, options["Prefix"], separator)}

    async def is_there(files, options):
        try:
            await call(files, "head_object", Bucket=options["Bucket"], Key=options["Key"])
        except FileNotFoundError:
            return False
        return True

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(S3FileSystem, "_call_s3", lagging)
        yield


def _by_folder(files, prefix, separator):
    """A listing: what is in folders as one entry for each folder, if there is a separator."""
    below = [file["Key"].removeprefix(prefix) for file in files]
    is_deep = [bool(separator) and separator in name for name in below]
    folders = {name.partition(separator)[0] for name, deep in zip(below, is_deep, strict=True) if deep}
    contents = [file for file, deep in zip(files, is_deep, strict=True) if not deep]
    prefixes = [{"Prefix": prefix + folder + separator} for folder in sorted(folders)]
    return {"Contents": contents, "CommonPrefixes": prefixes, "KeyCount": len(contents) + len(prefixes)}
