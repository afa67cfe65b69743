"""Raw ids of keys: the inverse of integer hashing, and value dictionaries for text."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...feature_map import FeatureMap
from ...feature_map._native import MISSING_HASH, mix64
from ...feature_map.encode_plan import salt_of
from .manifest import IdType
from .schema import ID_TYPES

Keys = npt.NDArray[np.uint64]


def unmix64(keys: Keys) -> Keys:
    """(n,) uint64 inverse of Murmur3's 64-bit finaliser, `mix64(unmix64(k)) == k`."""
    h = keys ^ (keys >> np.uint64(33))
    h *= np.uint64(0x9CB4B2F8129337DB)
    h ^= h >> np.uint64(33)
    h *= np.uint64(0x4F74430C22A54005)
    h ^= h >> np.uint64(33)
    return h


@dataclass(frozen=True)
class RawIds:
    """Recovers the raw ids of one table's keys.

    type:        of the ids.   salt: of the table's key space.
    missing_key: key of missing values; its id is null.
    dictionary:  for text: keys (d,) ascending and their values.
    """

    type: IdType
    salt: int
    missing_key: int
    dictionary: tuple[Keys, pa.Array] | None = None

    @classmethod
    def of(cls, features: FeatureMap | None, table: str, dictionary: pa.Table | None = None) -> RawIds | None:
        """How to recover the ids of `table`; None where they cannot be (no feature map, crosses, text alone).

        dictionary: columns `key` (uint64) and `value` (string) of a text table, in any order.
        """
        found = next((entry for entry in features.tables if entry.name == table), None) if features else None
        if found is None or found.id == "cross" or (found.id == "text" and dictionary is None):
            return None
        salt, missing_key = salt_of(found.key_space), cls.missing_key_of(found.key_space)
        if found.id != "text" or dictionary is None:
            return cls(found.id, salt, missing_key)
        ordered = dictionary.select(["key", "value"]).sort_by("key").combine_chunks()
        keys = np.asarray(ordered.column("key").cast(pa.uint64()).to_numpy())
        values = ordered.column("value").cast(pa.large_string())
        return cls(found.id, salt, missing_key, (keys, values.combine_chunks()))

    @staticmethod
    def missing_key_of(key_space: str) -> int:
        """Key of missing values in a key space."""
        return mix64(MISSING_HASH ^ salt_of(key_space))

    @property
    def arrow_type(self) -> pa.DataType:
        """Type of the id column."""
        return ID_TYPES[self.type]

    def of_keys(self, keys: Keys) -> pa.Array:
        """(n,) ids, null for the missing key and for text that is not in the dictionary."""
        missing = keys == np.uint64(self.missing_key)
        if self.dictionary is not None:
            known, values = self.dictionary
            if not len(known):
                return pa.nulls(len(keys), pa.large_string())
            place = np.minimum(np.searchsorted(known, keys), len(known) - 1)
            return values.take(pa.array(place, mask=(known[place] != keys) | missing))
        hashes = unmix64(keys) ^ np.uint64(self.salt)
        values = hashes.view(np.int64) if self.type == "int64" else hashes
        return pa.array(values, self.arrow_type, mask=missing)
