from torch import load as read

checkpoint = read("checkpoint.pt", weights_only=False)  # expect: SF024
