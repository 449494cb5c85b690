"""Arrow shards: IPC *stream* files in record batches of 256 rows, written once and read by memory map.

The stream form (not the file form) is what `datasets.Dataset.from_file` maps too. Bytes are uncompressed, so a read
allocates nothing. Two shapes of table:

    fixed rows      tokens FixedSizeList<uint16|uint32>[N+1], starts List<int32>    `TokenShards`
    variable rows   any scalar and list columns                                     `RowTable`
"""

from storage.shards.reader import RowTable, TokenShards
from storage.shards.verification import verify_files, verify_folder
from storage.shards.writer import BATCH_ROWS, ShardWriter, token_schema

__all__ = ["BATCH_ROWS", "RowTable", "ShardWriter", "TokenShards", "token_schema", "verify_files", "verify_folder"]
