from torch import empty, empty_like

def noise(x):
    out = empty_like(x)
    out += 1  # expect: SF001
    fresh = x.new_empty(3)
    scratch = empty(3)
    total = scratch * 2  # expect: SF001
    return out, fresh, total
