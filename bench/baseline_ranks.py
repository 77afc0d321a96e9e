"""The baseline on several ranks over gloo, a row of tokens each, in the three ways that fit a mixture-of-experts model:

    ddp     every rank holds everything, gradients are averaged (DistributedDataParallel)
    fsdp    weights, gradients and moments are sharded (FSDP2, fully_shard)
    ep      data parallel with the experts split over the ranks: rows travel to the owners of their experts by all-to-all;
            everything else is held by every rank and its gradients are averaged

    torchrun --nproc_per_node 2 bench/baseline_ranks.py MODEL_FOLDER --way ep [--tokens 512] [--precision fp32]
                                                        [--no_recompute] [--warmup 2] [--steps 5] [--threads 1]

Rank 0 prints one line of JSON.
"""
import argparse

import torch
import torch.distributed as dist
from torch.distributed.nn.functional import all_to_all_single

from baseline import Clock, adamw, environment, load_model, peak_mib, print_line, token_ids


class ExchangedExperts(torch.nn.Module):
    """The experts of a layer of which this rank keeps a block. A row is sent for each chosen expert."""

    def __init__(self, experts):
        super().__init__()
        self.local = experts.num_experts // dist.get_world_size()
        begin = self.local * dist.get_rank()
        for name in ("gate_up_proj", "down_proj"):
            block = getattr(experts, name).detach()[begin:begin + self.local].clone()
            setattr(experts, name, torch.nn.Parameter(block))
        experts.num_experts = self.local
        self.experts = experts

    def forward(self, x, index, weights):
        tokens, chosen = index.shape
        expert, order = index.reshape(-1).sort(stable=True)
        sent = torch.bincount(expert // self.local, minlength=dist.get_world_size())
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent)
        sent, received = sent.tolist(), received.tolist()
        rows = all_to_all_single(x.new_empty(sum(received), x.shape[1]), x[order // chosen], received, sent)
        local = expert.new_empty(sum(received))
        dist.all_to_all_single(local, expert % self.local, received, sent)
        y = self.experts(rows, local.unsqueeze(1), rows.new_ones(len(rows), 1))
        y = all_to_all_single(x.new_empty(len(order), x.shape[1]), y.contiguous(), sent, received)
        by_pair = y[order.argsort()].view(tokens, chosen, -1)
        return (by_pair * weights.unsqueeze(-1)).sum(dim=1)


class Way:
    """A model that is called, what is left to do for its gradients after backward, clipping at 1, which returns the norm."""

    def __init__(self, model):
        self.model = model

    def finish_gradients(self):
        pass

    def clip(self):
        return torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)


class Replicated(Way):
    def __init__(self, model):
        super().__init__(torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True))


class Sharded(Way):
    def __init__(self, model):
        from torch.distributed.fsdp import fully_shard

        mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
        for layer in model.model.layers:
            fully_shard(layer, mesh=mesh)
        super().__init__(fully_shard(model, mesh=mesh))

    def clip(self):
        return super().clip().full_tensor()


class ExpertParallel(Way):
    def __init__(self, model):
        super().__init__(model)
        for layer in model.model.layers:
            layer.mlp.experts = ExchangedExperts(layer.mlp.experts)
        self.experts = [p for n, p in model.named_parameters() if ".experts." in n]
        self.dense = [p for n, p in model.named_parameters() if ".experts." not in n]

    def finish_gradients(self):
        """Means over ranks. An expert's gradient is a sum over all ranks' tokens already."""
        for p in self.dense:
            dist.all_reduce(p.grad)
        for p in self.dense + self.experts:
            p.grad.div_(dist.get_world_size())

    def clip(self):
        experts, dense = (torch.nn.utils.get_total_norm([p.grad for p in part]) for part in (self.experts, self.dense))
        squares = experts**2
        dist.all_reduce(squares)
        norm = (squares + dense**2).sqrt()
        torch.nn.utils.clip_grads_with_norm_(self.model.parameters(), 1.0, norm)
        return norm


WAYS = {"ddp": Replicated, "fsdp": Sharded, "ep": ExpertParallel}


def run(args):
    torch.set_num_threads(args.threads)
    dist.init_process_group("gloo")
    ranks = dist.get_world_size()
    model = load_model(args.model, args.precision, not args.no_recompute)
    vocab = model.config.vocab_size
    way = WAYS[args.way](model)
    optimizer = adamw(way.model.parameters())
    clock, losses, norms = Clock(), [], []
    for step in range(args.warmup + args.steps):
        ids = token_ids(step, dist.get_rank(), ranks, args.tokens, vocab)
        dist.barrier()
        clock.start()
        with torch.autocast("cpu", torch.bfloat16, enabled=args.precision == "amp"):
            loss = way.model(input_ids=ids, labels=ids).loss
        clock.lap("forward")
        loss.backward()
        way.finish_gradients()
        clock.lap("backward")
        norm = way.clip()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        dist.barrier()
        clock.lap("optimizer")
        mean = loss.detach() / ranks
        dist.all_reduce(mean)
        losses.append(mean.item())
        norms.append(norm.item())
    peaks = torch.tensor([peak_mib()], dtype=torch.float64)
    dist.all_reduce(peaks)
    if dist.get_rank() == 0:
        print_line(program="baseline", way=args.way, ranks=ranks, tokens=args.tokens, precision=args.precision,
                   recompute=not args.no_recompute, losses=losses, grad_norms=norms, peak_rss_mib=peak_mib(),
                   peak_rss_sum_mib=peaks.item(), **environment(), **clock.report(args.warmup))
    dist.destroy_process_group()


if __name__ == "__main__":
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model")
    p.add_argument("--way", choices=WAYS, required=True)
    p.add_argument("--tokens", type=int, default=512)
    p.add_argument("--precision", choices=("fp32", "bf16", "amp"), default="fp32")
    p.add_argument("--no_recompute", action="store_true")
    p.add_argument("--warmup", type=int, default=2)
    p.add_argument("--steps", type=int, default=5)
    p.add_argument("--threads", type=int, default=1)
    run(p.parse_args())
