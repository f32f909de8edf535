"""The clusters of all rows: one Parquet file per shard."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from viewfuse.distributed.pass_zero import Checksum, Contents
from viewfuse.distributed.processes import Processes
from viewfuse.distributed.shards import Rows, Shards
from viewfuse.engine.batches import embed
from viewfuse.errors import DataError
from viewfuse.fitted.model import Model
from viewfuse.utils.atomic import writing
from viewfuse.utils.console import needed
from viewfuse.utils.jobs import side_by_side, turns


class LabelFiles:
    """Writes the clusters of shards under a model, which was trained when they held `contents`: others are refused."""

    def __init__(self, folder: Path, shards: Shards, model: Model, *, contents: Contents, with_embedding: bool) -> None:
        self._folder, self._shards, self._model, self._contents = folder, shards, model, contents
        self._arrow, self._parquet = needed("pyarrow", "io", folder), needed("pyarrow.parquet", "io", folder)
        self._turns, (self._n_clusters, width) = turns(model.stored.present.device), model.network.centers.shape
        arrow = self._arrow
        kinds = {
            "id": self._parquet.read_schema(shards.paths[0]).field(shards.layout.id_column).type,
            "label": arrow.int32(),
            "confidence": arrow.float32(),
            "out_of_range": arrow.bool_(),
        }
        embedding = {"embedding": arrow.list_(arrow.float32(), width)} if with_embedding else {}
        self._schema = arrow.schema(kinds | embedding)

    def write(self, processes: Processes) -> NDArray[np.int64]:
        """Write the files that are not there yet, each process its own; the sizes of the clusters over all rows."""
        sizes = sum(
            side_by_side(self._written, processes.own(self._shards.named)), np.zeros(self._n_clusters, np.int64)
        )
        return np.sum(processes.gather(sizes), axis=0)

    def _written(self, named: tuple[Path, str]) -> NDArray[np.int64]:
        """The sizes of the clusters of one shard, whose file is there afterwards."""
        shard, name = named
        try:
            known = self._parquet.read_table(self._folder / name, page_checksum_verification=True)
            if known.schema.equals(self._schema):
                return self._sizes(known)
        except (OSError, ValueError):  # there is no file, or a damaged one; errors of pyarrow are among these
            pass
        sizes, checksum = np.zeros(self._n_clusters, np.int64), Checksum(shard)
        ways = {"use_dictionary": False, "write_statistics": False, "compression": "NONE", "write_page_checksum": True}
        with (
            writing(self._folder / name) as temporary,
            self._parquet.ParquetWriter(temporary, self._schema, **ways) as writer,
        ):
            for rows in self._shards.read(shard):
                checksum.add(rows)
                table = self._table(shard, rows)
                writer.write_table(table)
                sizes += self._sizes(table)
            if checksum.digest != self._contents[name][0]:
                raise DataError(f"{shard} has changed while the model was trained; bring the old file back")
        return sizes

    def _sizes(self, table: Any) -> NDArray[np.int64]:
        labels = np.asarray(table.column("label"), np.int64)
        if len(labels) and not 0 <= labels.min() <= labels.max() < self._n_clusters:
            raise ValueError("labels of other clusters")
        return np.bincount(labels, minlength=self._n_clusters)

    def _table(self, shard: Path, rows: Rows) -> Any:
        """What is written of some rows."""
        if not len(rows.keys):
            return self._schema.empty_table()
        model = self._model
        views, _ = model.complete(self._shards.layout.views(rows.values), by_name=True)
        values, present = model.tensors(views)
        with self._turns, torch.no_grad():
            samples = model.locate(values, present)
            embedding = embed(model.method, model.network, samples, model.stored)
            chances, far = model.assign(samples, embedding), model.is_far(values, present)
        found = embedding.cpu().numpy()
        broken = np.flatnonzero(~np.isfinite(found).all(axis=1))
        if len(broken):
            raise DataError(
                f"{shard}, id {rows.ids[int(broken[0])].as_py()!r}: its values are too far from those of other rows; "
                "look for fill values and other units"
            )
        columns = [rows.ids, chances.argmax(axis=1).astype(np.int32), chances.max(axis=1), far]
        if "embedding" in self._schema.names:
            flat = self._arrow.array(found.reshape(-1))
            columns.append(self._arrow.FixedSizeListArray.from_arrays(flat, found.shape[1]))
        return self._arrow.table(columns, schema=self._schema)
