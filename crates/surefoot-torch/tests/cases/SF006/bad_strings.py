import torch

x = torch.zeros(3, device="cuda")  # expect: SF006
y = torch.ones(3).to("cuda:0")  # expect: SF006
device = torch.device("cuda")  # expect: SF006
