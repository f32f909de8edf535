"""One file, whatever its format, becomes views; here, or in the process that reads for another one."""

from __future__ import annotations

from viewfuse.io.isolated.jobs import ReadJob
from viewfuse.io.readers.hdf5 import read_h5ad, read_h5mu
from viewfuse.io.readers.npz import read_npy_folder, read_npz
from viewfuse.io.readers.parquet import read_parquet
from viewfuse.io.readers.text import read_text
from viewfuse.io.safety import guarded
from viewfuse.io.source import Contents
from viewfuse.io.writers import annotate_copy


def parse(job: ReadJob) -> Contents:
    """What is in a file; of a .npy file, what is in its folder. Any error names the file.

    Nothing where results are written into a file; that is done here since it opens the file as well.
    """
    with guarded(job.path):
        return _parse(job)


def _parse(job: ReadJob) -> Contents:
    if job.copy is not None:
        annotate_copy(job)
        return Contents([])
    if job.ending == ".npz":
        return read_npz(job.path)
    if job.ending == ".npy":
        return read_npy_folder(job.path.parent)
    if job.ending == ".mat":
        from viewfuse.io.readers.mat import read_mat  # SciPy takes a while to import, for nothing in most cases

        return read_mat(job.path)
    if job.ending == ".h5mu":
        return read_h5mu(job.path, job.use)
    if job.ending == ".h5ad":
        return Contents(read_h5ad(job.path, job.use if isinstance(job.use, dict) else {}))
    if job.ending == ".parquet":
        return Contents(read_parquet(job.path, job.id_column, job.blocks))
    return Contents(read_text(job.path, job.id_column, job.blocks, job.header))
