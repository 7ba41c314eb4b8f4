import torch as th

device = th.device("mps" if th.backends.mps.is_available() else "cpu")
a = th.zeros(3).to(device)
b = th.arange(3)
c = th.cat([a, b])  # expect: SF003
d = th.stack((a, b))  # expect: SF003
