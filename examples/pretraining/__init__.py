"""The parts of `examples/pretrain.py`: from its options to its plots.

A run's folder, `<out>/<name>`, format 2:

    run.json           the marker: written once, before anything else, and never changed. Options
                       that decide the result, SHA-256 of all tokens, versions of what computes
    lock               locked by the one process that is at work here; the lock dies with it
    holder.json        which process that is: pid, host, since when; removed when it ends
    checkpoints/       <strategy>-seed<N>.pt, and the one before it as ....previous.pt
    metrics.jsonl      a line per logged step; grows as training goes on
    costs.json         peak memory and time of a step, measured once
    summary.csv, summary.txt, loss.png, edq.png

JSON files hold `sha256`, the digest of the rest in its canonical spelling (keys sorted, no spaces).
A checkpoint is a zip archive that `torch.load(path, weights_only=True)` reads; its comment is the
seal, see `checkpoint.py`. It holds "step", "seconds", "model", "metrics" (this training's lines of
metrics.jsonl), "result" (None until the last step) and, until then, "optimizer" and "rng". So a
training depends on no other file: whatever else is lost or damaged is written anew, and damage to
one training costs no other.

What a process finds it takes only if marker or seal, and their digests, fit its own options and
data. Where the newest checkpoint does not, the older one is taken, a line says so, and the file
that is no checkpoint is kept as ....unusable.pt. A folder without a fitting marker is left as it
is. Every file takes its name by a rename after it has reached the disk; temporary files are named
.<name>.<16 digits>.tmp, and what a killed process left of those is removed by the next one.

Runs by several processes (`--parallel`, `--model`, `--reduce`, `--micro-batch`) have the same
marker and lock, kept by the first process, and checkpoints of another kind, see `shards.py`.
"""
