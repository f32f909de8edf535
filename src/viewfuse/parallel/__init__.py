"""Independent jobs: in turn, in worker processes on this machine, or on Ray; the results are the same to the bit.

`run` takes a list of `Job` and returns what they return, in their order. `use` says who runs them: by default this
machine, with as many workers as its cores and its memory allow, where that pays.
"""

from viewfuse.parallel.cores import threads_for
from viewfuse.parallel.engines import as_done, opened, run, use
from viewfuse.parallel.jobs import Job, in_worker, report

__all__ = ["Job", "as_done", "in_worker", "opened", "report", "run", "threads_for", "use"]
