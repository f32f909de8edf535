"""What a run of `fit-large` writes: its folder, and the clusters of all rows, one Parquet file per shard."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from viewfuse.distributed.pass_zero import Checksum, Contents
from viewfuse.distributed.processes import Processes
from viewfuse.distributed.shards import Rows, Shards
from viewfuse.engine.batches import embed
from viewfuse.engine.checkpoint import FACTS
from viewfuse.errors import CannotWrite, DataError
from viewfuse.fitted.model import Model
from viewfuse.utils.atomic import parsed, writing
from viewfuse.utils.console import needed
from viewfuse.utils.jobs import side_by_side, turns

_NAMES = ("checkpoint", "model", "labels", "summary.json", "columns.csv")


class LabelFiles:
    """Writes the clusters of shards under a model.

    Parameters
    ----------
    folder : where the files go, each called like its shard
    contents : what the shards held when the model was trained; another one is refused
    with_embedding : whether the embedding of each row is written as well
    """

    def __init__(self, folder: Path, shards: Shards, model: Model, *, contents: Contents, with_embedding: bool) -> None:
        self._folder, self._shards, self._model, self._with_embedding = folder, shards, model, with_embedding
        self._contents = contents
        self._arrow, self._parquet = needed("pyarrow", "io", folder), needed("pyarrow.parquet", "io", folder)
        self._turns = turns(model.stored.present.device)

    def write(self, processes: Processes) -> NDArray[np.int64]:
        """Write the files that are not there yet, each process its own; the sizes of the clusters over all rows."""
        pairs = list(zip(self._shards.paths, self._shards.names, strict=True))
        sizes = np.zeros(self._model.method.n_clusters, np.int64)
        for own in side_by_side(self._written, processes.own(pairs)):
            sizes += own
        return np.sum(processes.gather(sizes), axis=0)

    def _written(self, pair: tuple[Path, str]) -> NDArray[np.int64]:
        """The sizes of the clusters of one shard, whose file is there afterwards."""
        shard, name = pair
        path = self._folder / name
        sizes = self._kept(path)
        if sizes is not None:
            return sizes
        sizes = np.zeros(self._model.method.n_clusters, np.int64)
        ways = {"use_dictionary": False, "write_statistics": False, "compression": "NONE", "write_page_checksum": True}
        with writing(path) as temporary, self._parquet.ParquetWriter(temporary, self._schema(), **ways) as writer:
            checksum = Checksum(shard)
            for rows in self._shards.read(shard):
                checksum.add(rows)
                table = self._table(shard, rows)
                writer.write_table(table)
                sizes += self._sizes(table)
            if checksum.content().digest != self._contents[name].digest:
                raise DataError(f"{shard} has changed while the model was trained; bring the old file back")
        return sizes

    def _kept(self, path: Path) -> NDArray[np.int64] | None:
        """The sizes of the clusters in a file that an earlier run wrote; None without, or where it is damaged."""
        try:
            table = self._parquet.read_table(path, page_checksum_verification=True)
            return self._sizes(table) if table.schema.equals(self._schema()) else None
        except (OSError, ValueError):  # errors of pyarrow are among these
            return None

    def _sizes(self, table: Any) -> NDArray[np.int64]:
        labels, count = np.asarray(table.column("label"), np.int64), self._model.method.n_clusters
        if len(labels) and not 0 <= labels.min() <= labels.max() < count:
            raise ValueError("labels of other clusters")
        return np.bincount(labels, minlength=count)

    def _schema(self) -> Any:
        arrow, layout = self._arrow, self._shards.layout
        kind = self._parquet.read_schema(self._shards.paths[0]).field(layout.id_column).type
        fields = [
            ("id", kind),
            ("label", arrow.int32()),
            ("confidence", arrow.float32()),
            ("out_of_range", arrow.bool_()),
        ]
        if self._with_embedding:
            width = self._model.network.centers.shape[1]
            fields.append(("embedding", arrow.list_(arrow.float32(), width)))
        return arrow.schema(fields)

    def _table(self, shard: Path, rows: Rows) -> Any:
        chances, far, embedding = self._placed(shard, rows)
        columns = [rows.ids, chances.argmax(axis=1).astype(np.int32), chances.max(axis=1), far]
        if self._with_embedding:
            flat = self._arrow.array(embedding.reshape(-1))
            columns.append(self._arrow.FixedSizeListArray.from_arrays(flat, embedding.shape[1]))
        return self._arrow.table(columns, schema=self._schema())

    def _placed(self, shard: Path, rows: Rows) -> tuple[NDArray[np.float32], NDArray[np.bool_], NDArray[np.float32]]:
        """Probabilities, whether rows are far out, and embeddings."""
        model = self._model
        if not len(rows.keys):
            width = model.network.centers.shape
            return np.zeros((0, width[0]), np.float32), np.zeros(0, bool), np.zeros((0, width[1]), np.float32)
        views, _ = model.complete(self._shards.layout.views(rows.values), by_name=True)
        values, present = model.tensors(views)
        with self._turns, torch.no_grad():
            samples = model.locate(values, present)
            embedding = embed(model.method, model.network, samples, model.stored)
            chances, far = model.assign(samples, embedding), model.is_far(values, present)
        found = embedding.cpu().numpy()
        if not np.isfinite(found).all():
            row = int(np.flatnonzero(~np.isfinite(found).all(axis=1))[0])
            raise DataError(
                f"{shard}, id {rows.ids[row].as_py()!r}: its values are too far from those of other rows; look for "
                "fill values and other units"
            )
        return chances, far, found


class RunFolder:
    """The folder of a run of `fit-large`, with the places of all that it writes there."""

    def __init__(self, out: Path) -> None:
        self.checkpoint, self.model, self.labels, self.summary, self.columns = self._all = [out / one for one in _NAMES]

    def read_summary(self) -> dict[str, Any] | None:
        """What a run wrote when it was done; None where there is none."""
        try:
            found: dict[str, Any] = parsed(self.summary.read_bytes())
            return {**found, "fit": dict(found["fit"])}
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def clear(self) -> None:
        """Remove what a run left; refuses what no run wrote, as others have folders of these names, too."""
        found = [path for path in self._all if path.is_file() or (path.is_dir() and any(path.iterdir()))]
        if found and not (self.read_summary() or (self.checkpoint / FACTS).is_file()):
            raise CannotWrite(f"{found[0]} is of no fit-large; move it, or give another --out")
        for path in self._all:
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)

    def forget_checkpoint(self) -> None:
        """Remove the checkpoint, which is no longer needed."""
        if self.checkpoint.is_dir():
            shutil.rmtree(self.checkpoint)
