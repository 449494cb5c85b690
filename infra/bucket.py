"""A bucket beside a folder: made, copied down, copied up. Only what differs in size or is newer at its source is copied.

    python -m infra.bucket make BUCKET          nothing if it exists
    python -m infra.bucket save BUCKET FOLDER   nothing is removed from the folder
    python -m infra.bucket load FOLDER BUCKET   nothing is removed from the bucket

The address and keys are the usual ones: AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path


def files():
    import s3fs

    return s3fs.S3FileSystem(use_listings_cache=False)


def make(bucket: str) -> str:
    storage = files()
    if storage.exists(bucket):
        return f"{bucket} exists"
    storage.mkdir(bucket)
    return f"{bucket} made"


def objects(bucket: str) -> dict[str, dict]:
    """Key -> what the storage says of it; keys that end in a slash mark folders and are left out."""
    found = files().find(bucket, detail=True)
    return {name.removeprefix(f"{bucket}/"): facts for name, facts in found.items()
            if facts["type"] == "file" and not name.endswith("/")}


def save(bucket: str, folder: str) -> str:
    """Copy down. A file is complete when it has its name."""
    storage, there, target = files(), objects(bucket), Path(folder)
    copied = 0
    for key, facts in there.items():
        place = target / key
        changed = facts["LastModified"].timestamp()
        if place.is_file() and (place.stat().st_size, place.stat().st_mtime) == (facts["size"], changed):
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        partial = place.with_name(f".{place.name}.partial")
        storage.get_file(f"{bucket}/{key}", str(partial))
        os.utime(partial, (changed, changed))
        partial.replace(place)
        copied += 1
    return f"{len(there)} objects, {copied} copied"


def load(folder: str, bucket: str) -> str:
    """Copy up, manifests last, so that an artifact appears when it is whole."""
    make(bucket)
    storage, there, source = files(), objects(bucket), Path(folder)
    paths = sorted((path for path in source.rglob("*") if path.is_file()), key=lambda path: path.name == "manifest.json")
    copied = 0
    for path in paths:
        key = path.relative_to(source).as_posix()
        if key not in there or there[key]["size"] != path.stat().st_size:
            storage.put_file(str(path), f"{bucket}/{key}")
            copied += 1
    return f"{len(paths)} objects, {copied} copied"


if __name__ == "__main__":
    print({"make": make, "save": save, "load": load}[sys.argv[1]](*sys.argv[2:]))     # noqa: T201 - this is its output
