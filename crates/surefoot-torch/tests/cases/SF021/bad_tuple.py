import torch

def run(net, batches):
    skipped = 0
    for x in batches:
        try:
            net(x).sum().backward()
        except (RuntimeError, ValueError):  # expect: SF021
            skipped += 1
    return skipped
