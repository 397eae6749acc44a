"""The Zarr `layout` of a result, `locations` on disks and object stores, one writer (`locks`), checksummed `records`.

It must not know how values arose.
"""
