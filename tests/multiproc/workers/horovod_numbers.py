"""An unedited program of two ranks that prints digests of what `horovod.torch` computes.

It runs over the published package and over mydist.horovod; the lines have to be the same.
"""

import hashlib

import horovod.torch as hvd
import torch

hvd.init()
RANK = hvd.rank()
torch.manual_seed(7 + RANK)


def note(label, tensor):
    wide = tensor.detach().double() if tensor.dtype == torch.float16 else tensor.detach()
    digest = hashlib.sha256(wide.numpy().tobytes()).hexdigest()[:16]
    print(f"NUMBER {RANK} {label} {tensor.dtype} {tuple(tensor.shape)} {digest}", flush=True)


def note_gradient(label, call, *shape):
    x = torch.randn(*shape, requires_grad=True)
    y = call(x)
    y = y[0] if isinstance(y, tuple) else y
    (y * torch.randn_like(y)).sum().backward()
    note(label, y)
    note(f"{label} gradient", x.grad)


for dtype in (torch.float16, torch.float32, torch.float64):
    x = (torch.randn(1001) * 100).to(dtype)
    for before, after in ((1.0, 1.0), (0.3, 1.0), (1.0, 0.7), (1 / 3, 2.7)):
        for op in (hvd.Average, hvd.Sum):
            result = hvd.allreduce(x, op=op, prescale_factor=before, postscale_factor=after)
            note(f"{op} {before} {after}", result)
for dtype in (torch.float32, torch.int32, torch.int64):
    x = (torch.randn(1001) * 100).to(dtype)
    for op in (hvd.Sum, hvd.Min, hvd.Max, hvd.Product):
        note(f"op {op}", hvd.allreduce(x, op=op))

note_gradient("allreduce", hvd.allreduce, 6, 3)
note_gradient("sum", lambda x: hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.3), 6, 3)
note_gradient("fp16", lambda x: hvd.allreduce(x, compression=hvd.Compression.fp16), 6, 3)
note_gradient("allgather", hvd.allgather, RANK + 2, 3)
note_gradient("broadcast", lambda x: hvd.broadcast(x, 1), 2, 3)
note_gradient("alltoall", lambda x: hvd.alltoall(x, [1, 3]), 4, 3)
note_gradient("reducescatter", hvd.reducescatter, 6, 3)
note_gradient(
    "scattered sum", lambda x: hvd.reducescatter(x, op=hvd.Sum, prescale_factor=0.3), 6, 3
)


def train(label, make, passes=1, **settings):
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.ReLU(), torch.nn.Linear(7, 3))
    optimizer = hvd.DistributedOptimizer(
        make(model.parameters()),
        named_parameters=model.named_parameters(),
        backward_passes_per_step=passes,
        **settings,
    )
    hvd.broadcast_parameters(model.state_dict(), 0)
    if settings.get("op") != hvd.Adasum:
        hvd.broadcast_optimizer_state(optimizer, 0)
    torch.manual_seed(50 + RANK)
    for _ in range(4):
        optimizer.zero_grad()
        for _ in range(passes):
            model(torch.randn(4, 5)).square().mean().backward()
        optimizer.step()
    for name, value in model.state_dict().items():
        note(f"{label} {name}", value)


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.01)


def adam(parameters):
    return torch.optim.Adam(parameters, lr=0.01)


for make in (sgd, adam):
    train(f"{make.__name__}", make)
    train(f"{make.__name__} sum", make, op=hvd.Sum)
    train(f"{make.__name__} predivided", make, gradient_predivide_factor=1.7)
    train(f"{make.__name__} in groups", make, groups=2)
    train(f"{make.__name__} fp16", make, compression=hvd.Compression.fp16)
    train(f"{make.__name__} of two passes", make, passes=2)
train("adasum", lambda parameters: torch.optim.SGD(parameters, lr=0.1), op=hvd.Adasum)

table = torch.nn.Embedding(9, 4, sparse=True)
torch.manual_seed(3)
table.weight.data.normal_()
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(table.parameters(), lr=0.1), named_parameters=table.named_parameters()
)
torch.manual_seed(50 + RANK)
for _ in range(3):
    optimizer.zero_grad()
    table(torch.randint(9, (5,))).square().mean().backward()
    optimizer.step()
note("sparse", table.weight)
hvd.shutdown()
