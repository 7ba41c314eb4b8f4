from torch.backends import mps

use_mps = mps.is_built()  # expect: SF005
