"""An unedited program of two ranks that prints what wrong calls of `horovod.torch` raise.

It runs over the published package and over mydist.horovod; the lines have to be the same.
"""

import warnings

import horovod.torch as hvd
import torch

RANK = "?"
ONES = torch.ones(4, 3)


def note(label, call, with_text=False):
    try:
        answer = f"gives {type(call()).__name__}"
    except hvd.HorovodInternalError as error:
        answer = f"HorovodInternalError {error if with_text else ''}"
    except Exception as error:
        answer = f"{type(error).__name__} {error if with_text else ''}"
    print(f"ANSWER {RANK} {label}: {answer} .", flush=True)


def to_the_letter(label, call):
    note(label, call, with_text=True)


def make(**settings):
    optimizer = torch.optim.SGD([PARAMETER], lr=1.0)
    return hvd.DistributedOptimizer(optimizer, **settings)


PARAMETER = torch.nn.Parameter(torch.ones(2))
for name in ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size"):
    to_the_letter(name, getattr(hvd, name))
to_the_letter("early timeline", lambda: hvd.start_timeline("none.json"))
to_the_letter("early set", lambda: hvd.add_process_set([0]))
to_the_letter("early allreduce", lambda: hvd.allreduce(ONES))
to_the_letter("early size", hvd.global_process_set.size)
to_the_letter("early included", hvd.ProcessSet([0, 1]).included)
to_the_letter("early optimizer", make)
to_the_letter("communicator", lambda: hvd.init(comm=5))

hvd.init(process_sets="dynamic")
RANK = hvd.rank()
to_the_letter("no set", lambda: hvd.ProcessSet(["a"]))
to_the_letter("set of all", lambda: hvd.add_process_set([0, 1]))
sets = [hvd.add_process_set([rank]) for rank in range(2)]
other = sets[1 - RANK]
to_the_letter("rank of another set", other.rank)
note("another set", lambda: hvd.allreduce(ONES, process_set=other))
note("root of another set", lambda: hvd.broadcast(ONES, 0, process_set=other))
note("removed", lambda: hvd.remove_process_set(sets[1]))
note("removed again", lambda: hvd.remove_process_set(sets[1]))
note("global set", lambda: hvd.remove_process_set(hvd.global_process_set))
to_the_letter("op", lambda: hvd.allreduce(ONES, op=17))
to_the_letter("op and average", lambda: hvd.allreduce(ONES, average=True, op=hvd.Sum))
note("scattered adasum", lambda: hvd.reducescatter(ONES, op=hvd.Adasum))
to_the_letter("turned", lambda: hvd.allreduce(torch.ones(3, 2).t()))
sparse = torch.sparse_coo_tensor([[0]], [1.0], (3,))
to_the_letter("sparse", lambda: hvd.allreduce(sparse))
note("list", lambda: hvd.allreduce([1.0]))
note("empty", lambda: hvd.allreduce(torch.zeros(0)))
note("empty name", lambda: hvd.allreduce(ONES, name=""))
note("in place", lambda: hvd.allreduce_(torch.ones(2, requires_grad=True)))
note("scalar to scatter", lambda: hvd.reducescatter(torch.tensor(1.0)))
note("shapes", lambda: hvd.allreduce(torch.ones(3 + RANK), name="shapes"))
dtypes = (torch.float32, torch.float64)
note("dtypes", lambda: hvd.allreduce(torch.ones(3, dtype=dtypes[RANK]), name="dtypes"))
ops = (hvd.Min, hvd.Max)
note("ops", lambda: hvd.allreduce(ONES, op=ops[RANK], name="ops"))
note("roots", lambda: hvd.broadcast(ONES, RANK, name="roots"))
note("gathered shapes", lambda: hvd.allgather(torch.ones(2, 3 + RANK), name="gathered"))
note("no such root", lambda: hvd.broadcast(ONES, 9))
note("no root", lambda: hvd.broadcast(ONES, None))
note("uneven", lambda: hvd.alltoall(torch.ones(3)))
note("short splits", lambda: hvd.alltoall(ONES, torch.tensor([1, 1], dtype=torch.int32)))
note("alltoall", lambda: hvd.synchronize(hvd.alltoall_async(ONES)))
note("grouped", lambda: hvd.grouped_allreduce([ONES]))
note("grouped in place", lambda: hvd.grouped_allreduce_([ONES.clone()]))
note("grouped allgather", lambda: hvd.grouped_allgather([ONES]))
note("grouped reducescatter", lambda: hvd.grouped_reducescatter([ONES]))
note("unknown handle", lambda: hvd.poll(123456))
to_the_letter("used handle", lambda: hvd.synchronize(123456))
to_the_letter("parameters", lambda: hvd.broadcast_parameters("x", 0))
to_the_letter("tuple of parameters", lambda: hvd.broadcast_parameters((ONES,), 0))
lbfgs = torch.optim.LBFGS([PARAMETER])
to_the_letter("LBFGS", lambda: hvd.broadcast_optimizer_state(lbfgs, 0))
to_the_letter("no pairs", lambda: make(named_parameters=[PARAMETER]))
to_the_letter("twice", lambda: make(named_parameters=[("p", PARAMETER)] * 2))
to_the_letter("no passes", lambda: make(backward_passes_per_step=0))
to_the_letter("predivide", lambda: make(gradient_predivide_factor=2.0, op=hvd.Sum))
to_the_letter("no groups", lambda: make(groups=0))
to_the_letter("groups", lambda: make(groups=[["x"]]))
to_the_letter("in two groups", lambda: make(groups=[[PARAMETER], [PARAMETER]]))
to_the_letter("adasum in a set", lambda: make(op=hvd.Adasum, process_set=sets[0]))
optimizer = make()
fields = sorted({*vars(optimizer)} - {*vars(torch.optim.SGD([PARAMETER], lr=1.0))})
to_the_letter(f"fields {fields}", lambda: None)
(PARAMETER * 2).sum().backward()
to_the_letter("early zero_grad", optimizer.zero_grad)
to_the_letter("second backward", lambda: (PARAMETER * 2).sum().backward())
optimizer.synchronize()
for label, call in (("step", optimizer.step), ("groups", lambda: make(num_groups=1))):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    told = [(w.category.__name__, str(w.message)) for w in caught]
    to_the_letter(f"{label} warns {told}", lambda: None)
adasum = make(op=hvd.Adasum)
to_the_letter("skip", lambda: adasum.skip_synchronize().__enter__())
note("join", hvd.join)
hvd.shutdown()
to_the_letter("late allreduce", lambda: hvd.allreduce(ONES))
