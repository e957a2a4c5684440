"""Names of a rank's streams, of copies that cross links, and of categories of memory."""

from __future__ import annotations

#: Memory categories of tasks and static memory; a task's `category` is ACTIVATIONS unless set.
CATEGORIES = (
    "activations",
    "parameters",
    "gradients",
    "optimizer",
    "gathered",
    "communication",
    "input",
    "kv_cache",
)
GATHERED = CATEGORIES.index("gathered")
GRADIENTS = CATEGORIES.index("gradients")


class Copy:
    """Copies between a device and a memory tier behind it; `wire_bytes` are their bytes.

    Reads from storage into host memory are counted among them.
    """

    NONE, TO_HOST, FROM_HOST, TO_CXL, FROM_CXL, FROM_STORAGE = range(6)


#: Kind of link behind a device → the copies that go over it.
COPY_LOADS = {
    "host_link_out_bytes": (Copy.TO_HOST, Copy.TO_CXL),
    "host_link_in_bytes": (Copy.FROM_HOST, Copy.FROM_CXL),
    "host_memory_bytes": (Copy.TO_HOST, Copy.FROM_HOST),
    "cxl_out_bytes": (Copy.TO_CXL,),
    "cxl_in_bytes": (Copy.FROM_CXL,),
    "storage_bytes": (Copy.FROM_STORAGE,),
}


class Stream:
    """Streams of one rank, as frameworks have them: one for compute, one per communicator."""

    COMPUTE, TENSOR, CONTEXT, EXPERT, GATHER, REDUCE, SEND_NEXT, SEND_PREVIOUS, HOST = range(9)
    COPY_OUT, COPY_IN, HOST_UPDATE, STORAGE, WORKERS, INPUT_COPY, DECODER = range(9, 16)


STREAMS = (
    "compute",
    "tensor",
    "context",
    "expert",
    "gather",
    "reduce",
    "send next",
    "send previous",
    "host",
    "copy out",
    "copy in",
    "host update",
    "storage",
    "workers",
    "input copy",
    "decoder",
)
